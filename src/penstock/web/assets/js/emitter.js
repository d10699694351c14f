// Events with listeners: decouples received data from drawing.

export class Emitter {
  #listeners = new Map();

  on(type, listener) {
    const listeners = this.#listeners.get(type) ?? new Set();
    this.#listeners.set(type, listeners.add(listener));
    return () => listeners.delete(listener);
  }

  emit(type, detail) {
    for (const listener of [...(this.#listeners.get(type) ?? [])]) listener(detail);
  }
}
