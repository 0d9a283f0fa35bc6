package brokerbench

import (
	"runtime"
	"syscall"
	"time"
)

// meter measures one job between start and stop.
type meter struct {
	took          time.Duration
	cpu           time.Duration
	bytes, allocs uint64

	began  time.Time
	before time.Duration
	mem    runtime.MemStats
}

func (m *meter) start() {
	runtime.GC()
	runtime.ReadMemStats(&m.mem)
	m.before, m.began = processTime(), time.Now()
}

func (m *meter) stop() {
	m.took, m.cpu = time.Since(m.began), processTime()-m.before
	var after runtime.MemStats
	runtime.ReadMemStats(&after)
	m.bytes, m.allocs = after.TotalAlloc-m.mem.TotalAlloc, after.Mallocs-m.mem.Mallocs
}

// processTime is the CPU time that this process has used.
func processTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
