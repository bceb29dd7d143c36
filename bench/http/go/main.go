// The same service with Go's net/http: main ADDRESS.
package main

import (
	"net/http"
	"os"
	"syscall"
	"time"
)

func main() {
	ok := []byte("ok")
	http.HandleFunc("/nothing", func(w http.ResponseWriter, r *http.Request) { w.Write(ok) })
	// It blocks its thread, as a library in C does.
	http.HandleFunc("/sleep", func(w http.ResponseWriter, r *http.Request) {
		wait := syscall.NsecToTimespec(300000)
		syscall.Nanosleep(&wait, nil)
		w.Write(ok)
	})
	http.HandleFunc("/compute", func(w http.ResponseWriter, r *http.Request) {
		for begin := time.Now(); time.Since(begin) < 300*time.Microsecond; {
		}
		w.Write(ok)
	})
	// It waits as Go's own runtime parks.
	http.HandleFunc("/park", func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(300 * time.Microsecond)
		w.Write(ok)
	})
	panic(http.ListenAndServe(os.Args[1], nil))
}
