// What the browser keeps: settings and the key in web storage, conversations in IndexedDB. A browser may refuse each of them; then
// they last as long as the page.

/** Settings outlive the page. */
export const settingsStore = {
  get(name, fallback) {
    try { return JSON.parse(localStorage.getItem('realizar.' + name)) ?? fallback; } catch { return fallback; }
  },
  set(name, value) {
    try { localStorage.setItem('realizar.' + name, JSON.stringify(value)); } catch { /* It lasts as long as the page. */ }
  },
};

/** The key outlives the page, but not the tab. */
export const keyStore = {
  get() { try { return sessionStorage.getItem('realizar.key') ?? ''; } catch { return ''; } },
  set(key) { try { sessionStorage.setItem('realizar.key', key); } catch { /* As above. */ } },
};

const asPromise = request => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

/** Conversations by id. `kept` says whether they outlive the page. */
export class ConversationStore {
  #database = null;
  #memory = new Map();

  static async open() {
    const store = new ConversationStore();
    try {
      const request = indexedDB.open('realizar', 1);
      request.onupgradeneeded = () => request.result.createObjectStore('conversations', { keyPath: 'id' });
      store.#database = await asPromise(request);
    } catch { /* In memory, then. */ }
    return store;
  }
  get kept() { return this.#database !== null; }
  #objects(mode) { return this.#database.transaction('conversations', mode).objectStore('conversations'); }
  async all() {
    return this.kept ? asPromise(this.#objects('readonly').getAll()) : [...this.#memory.values()];
  }
  async put(conversation) {
    if (this.kept) await asPromise(this.#objects('readwrite').put(conversation));
    else this.#memory.set(conversation.id, conversation);
  }
  async delete(id) {
    if (this.kept) await asPromise(this.#objects('readwrite').delete(id));
    else this.#memory.delete(id);
  }
}
