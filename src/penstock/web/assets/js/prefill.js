// A first watch list for a user who has none in this browser: the busiest instruments among the topics that the user
// may read. One subscription to all these topics lasts until messages have arrived for a moment.

import { get, Refusal } from "./api.js";
import { instrument, isInstrument } from "./quotebook.js";

const SAMPLE_MS = 1_500; // from the first message on
const INSTRUMENTS_MAX = 8;
const KEYS_MAX = 1_000;
const PATTERNS_MAX = 64;

export class Prefill {
  #stream;
  #onFound;
  #subscription = null;
  #counts = new Map(); // instrument or topic → { number, topics: topic → newest message }
  #timer = 0;
  #isWanted = false;

  // `onFound` gets a list of { topics, messages }.
  constructor(stream, onFound) {
    this.#stream = stream;
    this.#onFound = onFound;
  }

  get id() {
    return this.#subscription?.id ?? null;
  }

  async start() {
    this.#isWanted = true;
    try {
      const found = await get("/api/entitlements");
      const patterns = (found?.grants ?? []).filter((grant) => grant.action === "receive").map((grant) => grant.pattern);
      if (!this.#isWanted || !patterns.length) return;
      this.#subscription = this.#stream.subscribe({ topics: patterns.slice(0, PATTERNS_MAX) });
      this.#stream.emit("subscription", this.#subscription);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error; // without rights there is nothing to fill in
    }
  }

  stop() {
    this.#isWanted = false;
    clearTimeout(this.#timer);
    if (this.#subscription) this.#stream.unsubscribe(this.#subscription.id);
    this.#subscription = null;
    this.#counts.clear();
    this.#timer = 0;
  }

  // True if the message belongs to the sample only.
  take(message) {
    if (!this.#subscription || !Array.isArray(message?.ids) || !message.ids.includes(this.id)) return false;
    if (typeof message.topic !== "string") return true;
    const key = instrument(message);
    let found = this.#counts.get(key);
    if (!found) {
      if (this.#counts.size >= KEYS_MAX) return true;
      found = { key, number: 0, topics: new Map(), isInstrument: false };
      this.#counts.set(key, found);
    }
    found.number += 1;
    found.isInstrument ||= isInstrument(message);
    if (found.topics.size < INSTRUMENTS_MAX || found.topics.has(message.topic))
      found.topics.set(message.topic, message);
    this.#timer ||= setTimeout(() => this.#choose(), SAMPLE_MS);
    return true;
  }

  #choose() {
    const all = [...this.#counts.values()];
    const instruments = all.filter((each) => each.isInstrument);
    const busiest = (instruments.length ? instruments : all)
      .sort((a, b) => b.number - a.number || (a.key < b.key ? -1 : 1))
      .slice(0, INSTRUMENTS_MAX);
    this.stop();
    this.#onFound(
      busiest
        .sort((a, b) => (a.key < b.key ? -1 : 1))
        .map(({ key, topics, isInstrument }) => ({
          topics: isInstrument ? [`${key}.quote`, `${key}.trade`] : [key],
          messages: [...topics.values()],
        })),
    );
  }
}
