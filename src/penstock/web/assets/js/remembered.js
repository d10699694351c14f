// A value that this browser keeps from one visit to the next; an invalid value is dropped.

export function remembered(name, isGood, otherwise) {
  const key = `penstock:${name}`;
  return {
    get value() {
      try {
        const found = JSON.parse(localStorage.getItem(key));
        return isGood(found) ? found : otherwise;
      } catch {
        return otherwise;
      }
    },
    set value(value) {
      try {
        localStorage.setItem(key, JSON.stringify(value));
      } catch {
        // the page works without storage as well
      }
    },
  };
}
