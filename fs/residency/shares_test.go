package residency

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestShares: a client has a half of the stage's parts, and a user's clients leave a quarter to others, however long they keep them. Who waits for a share
// holds up nobody whose share has room, and gets the part that is given back.
func TestShares(t *testing.T) {
	_, m, _, _, _ := newFar(t, stageParts)
	synctest.Test(t, func(t *testing.T) {
		s := &m.pool.stage
		take := func(who *Tenant, n int) (all []*Part) {
			for range n {
				q, err := m.Part(who, nil)
				require.NoError(t, err)
				all = append(all, q)
			}
			return all
		}
		waits := func(who *Tenant) <-chan *Part {
			got := make(chan *Part, 1)
			go func() {
				q, _ := m.Part(who, nil)
				got <- q
			}()
			synctest.Wait()
			require.Empty(t, got)
			return got
		}
		hung, second, other := NewTenant(7), NewTenant(7), NewTenant(8)
		all := take(hung, clientParts)
		mine := waits(hung)
		all = append(all, take(second, userParts-clientParts)...)
		its := waits(second)
		rest := take(other, stageParts-userParts)
		theirs := waits(other)
		rest[0].Give()
		rest[0] = <-theirs // which waits behind the two

		all[len(all)-1].Give() // the second's: the first to wait still has its share
		synctest.Wait()
		require.Empty(t, mine)
		all[len(all)-1] = <-its
		all[0].Give()
		all[0] = <-mine

		rest[0].Give()
		q, err := m.Part(nil, nil) // the daemon has no share
		require.NoError(t, err)
		rest[0] = q

		blocked := waits(hung)
		rest[1].lost = true
		rest[1].Give() // those who wait look, and who has its share goes on waiting
		synctest.Wait()
		require.Empty(t, blocked)
		for _, q := range append(all, append(rest[2:], rest[0])...) {
			q.Give()
		}
		(<-blocked).Give()
		require.Empty(t, s.users)
		require.Empty(t, s.waits)
		require.Len(t, s.idle, stageParts-1)
	})
}
