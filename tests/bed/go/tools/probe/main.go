// A pod for tests of the cluster's network: serves its own host name, or asks another pod for one.
//
//	probe serve :8080          answers every connection with the host name
//	probe ask NAME:PORT 60s    prints what NAME answers, once it does; fails after the given time
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"time"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "serve" {
		log.Fatal(serve(os.Args[2]))
	}
	if len(os.Args) != 4 || os.Args[1] != "ask" {
		log.Fatal("usage: probe serve ADDRESS | probe ask NAME:PORT DURATION")
	}
	patience, err := time.ParseDuration(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	answer, err := askUntil(os.Args[2], time.Now().Add(patience))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(answer)
}

func serve(address string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		caller, err := listener.Accept()
		if err != nil {
			return err
		}
		fmt.Fprintln(caller, name)
		caller.Close()
	}
}

// askUntil asks again until there is an answer: names appear in DNS a moment after their pods.
func askUntil(address string, deadline time.Time) (string, error) {
	for {
		answer, err := ask(address)
		if err == nil || time.Now().After(deadline) {
			return answer, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func ask(address string) (string, error) {
	peer, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return "", err
	}
	defer peer.Close()
	answer, err := io.ReadAll(peer)
	return string(answer), err
}
