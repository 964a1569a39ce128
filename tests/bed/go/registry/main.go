// The image registry of the test bed: the distribution project's own, on a folder, without TLS.
//
// It listens on several addresses because the machine pushes to localhost and the nodes, in network
// namespaces of their own, pull from the bridge. Manifests are kept on disk with the blobs, so images
// outlive a restart.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"net/http"
	"strings"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	"github.com/sirupsen/logrus"
)

func config(folder string) *configuration.Configuration {
	c := &configuration.Configuration{
		Version: "0.1",
		Storage: configuration.Storage{
			"filesystem": configuration.Parameters{"rootdirectory": folder},
			"delete":     configuration.Parameters{"enabled": true},
			"cache":      configuration.Parameters{"blobdescriptor": "inmemory"},
		},
	}
	c.Log.AccessLog.Disabled = true
	c.HTTP.Secret = "one process, no load balancer: nothing to share"
	return c
}

func main() {
	folder := flag.String("folder", "", "where images are kept")
	listen := flag.String("listen", "", "addresses to serve on, separated by commas")
	flag.Parse()
	logrus.SetLevel(logrus.WarnLevel)
	app := handlers.NewApp(context.Background(), config(*folder))
	failed := make(chan error)
	for _, address := range strings.Split(*listen, ",") {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			log.Fatal(err)
		}
		go func() { failed <- http.Serve(listener, app) }()
	}
	log.Fatal(<-failed)
}
