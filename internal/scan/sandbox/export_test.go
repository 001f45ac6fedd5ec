package sandbox

// Settled gives an isolation the level that its layers amount to.
func Settled(i Isolation) Isolation {
	i.setLevel()
	return i
}
