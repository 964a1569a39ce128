// A TCP forwarder: kubectl on this machine speaks to 127.0.0.1 (which no HTTP proxy setting ever
// reroutes), while the API server is bound to the bridge address alone, where the nodes reach it.
package main

import (
	"flag"
	"io"
	"log"
	"net"
)

func main() {
	from := flag.String("from", "", "address to listen on")
	to := flag.String("to", "", "address to forward to")
	flag.Parse()
	listener, err := net.Listen("tcp", *from)
	if err != nil {
		log.Fatal(err)
	}
	for {
		near, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go serve(near, *to)
	}
}

func serve(near net.Conn, to string) {
	defer near.Close()
	far, err := net.Dial("tcp", to)
	if err != nil {
		log.Print(err)
		return
	}
	defer far.Close()
	go pump(far, near)
	pump(near, far)
}

// pump copies one direction and passes its end on, so that half-closed connections stay usable.
func pump(into, from net.Conn) {
	io.Copy(into, from)
	into.(*net.TCPConn).CloseWrite()
}
