package lanefs_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/share/sharetest"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// checksum is the README's example, whole: the SHA-256 of a file, by way of device memory.
func checksum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	session, err := lanefs.Connect(f)
	if errors.Is(err, lanefs.ErrNotLaneFS) {
		return "", fmt.Errorf("%s: copy it to a LaneFS mount first", path)
	}
	if err != nil {
		return "", err
	}
	defer session.Close()
	for {
		buffer, err := session.Map(f, 0, 0)
		if err != nil {
			return "", err
		}
		sum := sha256.Sum256(buffer.Bytes())
		current := buffer.Current()
		if err := buffer.Close(); err != nil {
			return "", err
		}
		if current { // else the file has changed meanwhile
			return fmt.Sprintf("%x", sum), nil
		}
	}
}

func TestExample(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	data := random(10, 3*mib+1)
	m.Write("weights.bin", data)
	got, err := checksum(m.Path("weights.bin"))
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(data)), got)
	_, err = checksum(os.Args[0])
	require.ErrorContains(t, err, "copy it to a LaneFS mount first")
}
