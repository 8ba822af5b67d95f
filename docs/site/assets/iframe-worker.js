// Browsers start no workers from the file system. There the search runs in a hidden frame, which speaks as a worker does.
(() => {
  if (location.protocol !== "file:") return

  const prelude = `
    postMessage = message => parent.postMessage(message, "*")
    importScripts = (...urls) => urls.reduce((loaded, url) => loaded.then(() => new Promise((resolve, reject) => {
      const script = document.createElement("script")
      script.src = url
      script.onload = resolve
      script.onerror = reject
      document.body.appendChild(script)
    })), Promise.resolve())
  `

  class FrameWorker extends EventTarget {
    constructor(url) {
      super()
      this.onmessage = this.onerror = null
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      this.hear = event => {
        if (event.source !== this.frame.contentWindow) return
        const told = new MessageEvent("message", { data: event.data })
        this.dispatchEvent(told)
        if (this.onmessage) this.onmessage(told)
      }
      addEventListener("message", this.hear)
      const inner = this.frame.contentDocument
      inner.open()
      inner.write(`<body><script>${prelude}<\/script></body>`)
      inner.close()
      const script = inner.createElement("script")
      script.src = url
      this.ready = new Promise((resolve, reject) => {
        script.onload = resolve
        script.onerror = reject
      })
      inner.body.appendChild(script)
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      removeEventListener("message", this.hear)
      this.frame.remove()
    }
  }

  self.Worker = FrameWorker
})()
