// Starts the page: the session, the sections, the two connections, and the notices about them.

import { onDone } from "./actions.js";
import { Alerts } from "./alerts.js";
import { get, post, Refusal } from "./api.js";
import { Book } from "./book.js";
import { Clients } from "./clients.js";
import { byId, h, setText } from "./dom.js";
import { duration, shown } from "./format.js";
import { History } from "./history.js";
import { Infostream } from "./infostream.js";
import { clearNotices, dismissible, notice, say } from "./notices.js";
import { Publish } from "./publish.js";
import { Quotes } from "./quotes.js";
import { CLOSED } from "./socket.js";
import { Stream } from "./stream.js";
import { Streams } from "./streams.js";
import { badge } from "./tables.js";
import { Topology } from "./topology.js";
import { Watch } from "./watch.js";

const TICK_MS = 500;
const LINK = "#login=";
const DONE_MS = 10_000; // how long a notice about a completed action is shown
const SECTIONS = ["quotes", "book", "alerts", "topology", "history", "infostream", "streams", "clients", "publish"];

const watch = new Watch();
const stream = new Stream();
const quotes = new Quotes(watch, stream);
const book = new Book(watch, stream, () => quotes.instruments());
const alerts = new Alerts(watch, stream);
const topology = new Topology(watch, say);
const nodeHistory = new History(watch);
const infostream = new Infostream(watch);
const streams = new Streams(watch);
const clients = new Clients(watch, (refusal) => leave(refusal.told));
const publish = new Publish(stream, (topic) => {
  quotes.add([topic]);
  location.hash = "#quotes";
});

let session = null;
let ticking = 0;
let clearingDone = 0;

// The session

async function begin() {
  const told = await takeLink();
  if (told === null) return;
  try {
    enter(await get("/api/session"));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    showLogin(error.isLoggedOut ? told : error.told);
  }
}

// A login link has its secret in the fragment, which leaves the address at once. Returns null if the link logged in,
// otherwise a text for the user, which is empty without a link.
async function takeLink() {
  if (!location.hash.startsWith(LINK)) return "";
  const secret = location.hash.slice(LINK.length);
  history.replaceState(null, "", location.pathname);
  try {
    const found = await post("/api/login-link", { secret });
    leave("");
    enter(found);
    return null;
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return error.told;
  }
}

function showLogin(told) {
  document.body.dataset.view = "login";
  byId("console").hidden = true;
  byId("login").hidden = false;
  byId("plant").replaceChildren();
  byId("who").replaceChildren();
  byId("link").replaceChildren();
  tellAtLogin(told);
  byId("login-form").elements.name.focus();
}

function tellAtLogin(told) {
  const place = byId("login-told");
  place.hidden = !told;
  place.className = "notice bad";
  setText(place, shown(told, 400));
}

byId("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const found = await post("/api/login", {
      name: form.elements.name.value.trim(),
      secret: form.elements.secret.value,
    });
    form.reset();
    enter(found);
    heading().focus({ preventScroll: true });
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    form.elements.secret.value = "";
    tellAtLogin(error.told);
    form.elements.secret.focus();
  } finally {
    button.disabled = false;
  }
});

function enter(found) {
  session = found;
  document.body.dataset.view = "console";
  tellAtLogin("");
  byId("login").hidden = true;
  byId("console").hidden = false;
  setText(byId("plant"), shown(session.plant, 60));
  const logOut = h(
    "button",
    {
      type: "button",
      class: "quiet",
      on: {
        click: () =>
          post("/api/logout")
            .catch(() => null)
            .then(() => leave("")),
      },
    },
    "Log out",
  );
  const role = session.is_operator ? h("span", { class: "badge plain" }, "operator") : null;
  byId("who").replaceChildren(
    ...[h("span", { class: "name" }, shown(session.client, 60)), role, logOut].filter(Boolean),
  );
  for (const section of [quotes, book, alerts, topology, nodeHistory, infostream, clients, publish]) section.start(session);
  watch.start();
  if (session.has_stream) stream.start();
  ticking = setInterval(tick, TICK_MS);
  route();
  tick();
}

function leave(told) {
  if (!session) return;
  session = null;
  clearInterval(ticking);
  for (const each of [watch, stream, quotes, book, alerts, nodeHistory, clients, publish]) each.stop();
  clearNotices();
  byId("confirm").close();
  showLogin(told);
}

// The sections

function route() {
  if (!session) return;
  const wanted = SECTIONS.includes(location.hash.slice(1)) ? location.hash.slice(1) : SECTIONS[0];
  for (const name of SECTIONS) byId(name).hidden = name !== wanted;
  for (const link of document.querySelectorAll(".rail a")) {
    if (link.hash === `#${wanted}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${byId(`${wanted}-title`).textContent} · Penstock console`;
  for (const section of [alerts, topology, infostream, streams, clients, publish]) section.draw();
  book.open();
  nodeHistory.refresh();
  clients.refresh();
}

function heading() {
  return document.querySelector("main section:not([hidden]) h1");
}

addEventListener("hashchange", () => {
  if (location.hash === "#content") return; // the skip link
  if (location.hash.startsWith(LINK)) {
    if (session) takeLink().then((told) => told && dismissible("link", shown(told, 400), "bad"));
    else begin();
    return;
  }
  if (!session) return;
  route();
  scrollTo(0, 0);
  heading().focus({ preventScroll: true });
});

// The connections

function retryText(socket) {
  const seconds = Math.max(0, Math.ceil((socket.retryAt - performance.now()) / 1000));
  return socket.state === "waiting" ? `Trying again in ${seconds} s.` : "Trying again now.";
}

function tick() {
  if (!session) return;
  const isWatching = watch.socket.state === "open" && !watch.isStale;
  const element = byId("link").firstElementChild ?? byId("link").appendChild(h("span"));
  if (isWatching) badge("live", "good", element);
  else if (watch.picture) badge(`STALE ${duration(watch.ageS)}`, "bad", element);
  else badge("connecting", "warn", element);
  const isLost = watch.socket.state !== "open" && (watch.picture || watch.socket.state === "waiting");
  const age = watch.picture ? ` What is shown is ${duration(watch.ageS)} old.` : "";
  notice("watch", isLost ? "The console does not answer." : "", "bad", { detail: `${retryText(watch.socket)}${age}` });
  tellStream();
  if (!isWatching) for (const section of [topology, streams, clients]) section.draw();
}

function tellStream() {
  const { socket, link, over } = stream;
  const why = over ? `: ${shown(over.what, 300)}` : "";
  if (!session.has_stream)
    notice(
      "stream",
      "This console has no agent to take messages from: there are no quotes, and nothing can be published.",
      "warn",
    );
  else if (socket.state === "over")
    notice("stream", `The stream is over${why}.`, "bad", { button: ["Try again", () => restart()] });
  else if (socket.state === "waiting" && watch.socket.state === "open")
    notice("stream", `The stream is lost${why}. Quotes are old.`, "bad", { detail: retryText(socket) });
  else if (socket.state === "open" && link.state === "lost")
    notice(
      "stream",
      `${shown(link.agent || "The agent")} does not answer (${shown(link.detail || "lost", 200)}). Quotes are old until a way was found again.`,
    );
  else notice("stream", "");
}

function restart() {
  notice("stream", "");
  stream.again();
}

watch.on("state", (state) => {
  if (state === "over" && watch.socket.closeCode === CLOSED.loggedOut) leave("Your session is over: log in again.");
  else if (session) tick();
});

stream.on("state", (state) => {
  if (state === "over" && stream.socket.closeCode === CLOSED.loggedOut) leave("Your session is over: log in again.");
  else if (session) tick();
});

stream.on("revoked", ({ topics, reason }) => {
  const what = topics?.includes(">")
    ? "Your rights were"
    : `Your right to ${shown(topics?.join(", ") ?? "this", 200)} was`;
  dismissible(
    `revoked:${topics}`,
    `${what} revoked${reason ? `: ${shown(reason, 300)}` : ""}. Nothing more of it comes; what is shown of it is old.`,
    "bad",
  );
});

onDone((text) => {
  dismissible("done", text, "good");
  say(text);
  clearTimeout(clearingDone); // of the previous action: its end must not remove this notice
  clearingDone = setTimeout(() => notice("done", ""), DONE_MS);
  clients.refresh();
});

addEventListener("online", () => [watch, stream].forEach(({ socket }) => socket.retryNow()));
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) [watch, stream].forEach(({ socket }) => socket.retryNow());
});

begin();
