"""The journal on real files, threads and sockets: writer, reader, TCP server and client."""
