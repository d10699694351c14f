// Requests to the console. A refused request throws a Refusal with the console's message.

const PATIENCE_MS = 15_000;

export class Refusal extends Error {
  constructor({ code = "error", what = "", where = "", hint = "" }, status = 0) {
    super([where, what].filter(Boolean).join(": ") || code);
    this.code = code;
    this.hint = hint;
    this.status = status;
  }

  get isLoggedOut() {
    return this.status === 401;
  }

  get told() {
    return this.hint ? `${this.message} (${this.hint})` : this.message;
  }
}

async function request(method, path, body) {
  const options = { method, credentials: "same-origin", signal: AbortSignal.timeout(PATIENCE_MS) };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "Content-Type": "application/json" };
  }
  let answer, text;
  try {
    answer = await fetch(path, options);
    text = await answer.text();
  } catch {
    throw new Refusal({ code: "unreachable", what: "the console does not answer", hint: "is it running?" });
  }
  const said = parsed(text);
  if (!answer.ok) throw new Refusal(said ?? { what: `answered with ${answer.status}` }, answer.status);
  return said;
}

function parsed(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}

export const get = (path) => request("GET", path);
export const post = (path, body) => request("POST", path, body);
