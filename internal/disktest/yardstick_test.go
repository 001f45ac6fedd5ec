package disktest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestScaledTime(t *testing.T) {
	require.Equal(t, time.Second, scaledBy(2*time.Second, 2*yardstickUsual), "a machine of half the speed")
	require.Equal(t, time.Second, scaledBy(time.Second, yardstickUsual/2), "a faster machine is held to no less")
	require.Equal(t, leastBudget-1, Scaled(leastBudget-1))
	require.LessOrEqual(t, Scaled(time.Hour), time.Hour)
	require.Positive(t, Scaled(time.Hour))
}
