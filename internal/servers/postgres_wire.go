package servers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
)

// postgresHandshake logs in as postgres and returns the server's version. It is
// the only proof that the server takes work: the port is open before that.
func postgresHandshake(ctx context.Context, port int) (string, error) {
	conn, err := dial(ctx, port)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	const protocol3 = 3 << 16
	body := binary.BigEndian.AppendUint32(nil, protocol3)
	body = append(body, "user\x00postgres\x00database\x00postgres\x00\x00"...)
	if _, err := conn.Write(frame(body)); err != nil {
		return "", err
	}
	reader, version := bufio.NewReader(conn), ""
	for {
		kind, body, err := readMessage(reader)
		if err != nil {
			return "", err
		}
		switch kind {
		case 'S': // a parameter: name, value
			if name, value, ok := bytes.Cut(body, []byte{0}); ok && string(name) == "server_version" {
				version = string(bytes.TrimRight(value, "\x00"))
			}
		case 'E':
			return "", fmt.Errorf("postgres says %q", body)
		case 'Z': // ready for a query
			conn.Write(append([]byte{'X'}, frame(nil)...)) // good-bye; a failure changes nothing
			return version, nil
		}
	}
}

// frame puts the length, which counts itself, before the body.
func frame(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)
}

func readMessage(r *bufio.Reader) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size < 4 || size > 1<<16 {
		return 0, nil, fmt.Errorf("a message of %d bytes: this is not Postgres", size)
	}
	body = make([]byte, size-4)
	_, err = io.ReadFull(r, body)
	return head[0], body, err
}
