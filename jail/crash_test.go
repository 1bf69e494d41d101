package jail

func crashingDaemon() int { return 1 }
