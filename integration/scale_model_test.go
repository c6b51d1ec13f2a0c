package integration

import "math"

// plan is a fleet on paper: P processes that each ask for the same keys, by Zipf's law, and
// writers that invalidate them by the same law. What comes out is docs/scale.md's "What a
// fleet asks for"; TestScaleFleet compares it with what a fleet does. Times are in seconds,
// rates per second.
type plan struct {
	processes int
	rate      float64 // Gets of one process
	keys      int
	skew      float64 // of Zipf's law
	writes    float64 // Invalidates of the whole fleet
	ttl       float64 // of values, jitter included: the mean
	localTTL  float64
	load      float64 // how long one takes
	pushes    bool    // the store pushes; else local copies end by localTTL only
}

// demand is what it comes to, per second, and at a moment.
type demand struct {
	requests, localHits       float64
	gets, acquires, loads     float64
	invalidates, pushes       float64
	ownPushes                 float64 // of these: about what a process has sent itself
	values, leases, copies    float64 // at a moment; copies: in the locals of all processes
	trackedKeys, trackedPairs float64 // at a moment, when each key has been loaded once
}

// demand adds the keys up, those of like ranks at once.
func (p plan) demand() demand {
	var d demand
	norm := p.zipf(1, p.keys)
	for from := 1; from <= p.keys; {
		to := min(p.keys, max(from, int(float64(from)*1.05)))
		n := float64(to - from + 1)
		share := p.zipf(from, to) / norm / n
		k := p.key(share*p.rate, share*p.writes)
		d.add(k, n)
		from = to + 1
	}
	d.requests = float64(p.processes) * p.rate
	d.localHits = 1 - d.gets/d.requests
	return d
}

// hottest is the demand of the key that is asked for most.
func (p plan) hottest() demand {
	share := 1 / p.zipf(1, p.keys)
	return p.key(share*p.rate, share*p.writes)
}

func (d *demand) add(k demand, n float64) {
	d.gets += n * k.gets
	d.acquires += n * k.acquires
	d.loads += n * k.loads
	d.pushes += n * k.pushes
	d.invalidates += n * k.invalidates
	d.ownPushes += n * k.ownPushes
	d.values += n * k.values
	d.leases += n * k.leases
	d.copies += n * k.copies
	d.trackedKeys += n * k.trackedKeys
	d.trackedPairs += n * k.trackedPairs
}

// zipf is the sum of rank^-skew over some ranks: exact for few, the integral for many.
func (p plan) zipf(from, to int) (sum float64) {
	if to-from < 1000 {
		for i := from; i <= to; i++ {
			sum += math.Pow(float64(i), -p.skew)
		}
		return sum
	}
	middle := 10 * int(math.Ceil(float64(from)/10+1))
	for ; from < min(middle+1000, to); from++ {
		sum += math.Pow(float64(from), -p.skew)
	}
	a, b := float64(from)-0.5, float64(to)+0.5
	if p.skew == 1 {
		return sum + math.Log(b/a)
	}
	return sum + (math.Pow(b, 1-p.skew)-math.Pow(a, 1-p.skew))/(1-p.skew)
}

// key is one key, which each process asks for read times a second, and which is written
// write times. Its value lives in the store from a load until its TTL or a write, whichever is
// first; then nobody has it until somebody asks. One such life is the unit of account.
func (p plan) key(read, write float64) demand {
	procs := float64(p.processes)
	var life, armed, armedTime, again, first float64 // means over the lengths that a life can have
	ages := lives(p.ttl, write)
	for _, v := range ages {
		weight := 1 / float64(len(ages))
		life += weight * v
		armed += weight * (1 - math.Exp(-read*v))
		armedTime += weight * (v - (1-math.Exp(-read*v))/read)
		if p.pushes {
			first += weight * looks(read, v, p.localTTL)
			again += weight * looks(read, v-p.localTTL, p.localTTL)
		}
	}
	// Those who ask while it is loaded wait, and have it when it is there, like the loader.
	waiters := (procs - 1) * (1 - math.Exp(-read*p.load))
	early, late := 1+waiters, procs-1-waiters
	cycle := life + 1/(procs*read) + p.load

	var d demand
	d.invalidates = write
	d.loads = 1 / cycle
	d.values = life / cycle
	d.leases = p.load / cycle
	if !p.pushes {
		// A local copy outlives the value that it is of, and who waits asks again.
		d.gets = procs * read / (1 + read*p.localTTL)
		d.acquires = (1 + waiters*polls(p.load)) / cycle
		d.copies = procs - d.gets/read
		return d
	}
	d.gets = (early*(1+again) + late*first) / cycle
	d.acquires = (1 + 2*waiters) / cycle
	d.copies = procs - d.gets/read
	// At the end of a life all who have read the value hear of it, and so does the writer,
	// if it was a write, whether it has read it or not.
	ends := early + late*armed
	d.ownPushes = cost("pushesPerLoad")/cycle + cost("pushesPerInvalidate")*write
	d.pushes = ends/cycle + write*(1-ends/procs*d.values)
	// The lease: those who have waited for it hear of its end, and of the fill. They and the
	// loader hear of the next lease, too, since they were told of this one's.
	d.pushes += (cost("pushesPerLoad") + 2*waiters + early*(1-1/procs)) / cycle
	// A value whose TTL has ended is told of when it is removed: when somebody asks for it,
	// or before, when Redis happens on it. In the fleets of TestScaleFleet it is about half the time.
	lingers := ends * math.Exp(-write*p.ttl) / (procs * read) / 2
	d.trackedPairs = (early*life+late*armedTime+lingers)/cycle + early
	d.trackedKeys = d.values + 1
	return d
}

// polls is how often who waits for another's load asks, where the store cannot push.
func polls(load float64) (n float64) {
	for waited, pause := 0.0, max(0.01, load*3/8); waited < load; n++ {
		waited += pause
		pause = min(0.5, max(0.01, waited*3/16))
	}
	return n
}

// lives are lengths that a value's life can have, all equally likely: the TTL, unless a
// write comes before.
func lives(ttl, write float64) []float64 {
	if write*ttl < 1e-9 {
		return []float64{ttl}
	}
	const n = 20
	all := make([]float64, n)
	for i := range all {
		all[i] = min(ttl, -math.Log(1-(float64(i)+0.5)/n)/write)
	}
	return all
}

// looks is how often a process that asks read times a second looks into the store while a
// value lives there: at its first read, and at the first after each localTTL. The i-th look
// happens if i reads come in the time that the i-1 copies before it leave over.
func looks(read, life, localTTL float64) (n float64) {
	for i := 0; life > 0; i++ {
		// The chance that a Poisson variable of this mean is above i.
		mean := read * life
		life -= localTTL
		if mean > float64(i)+10*math.Sqrt(mean)+10 {
			n++
			continue
		}
		term, below := math.Exp(-mean), 0.0
		for j := 0; j <= i; j++ {
			below += term
			term *= mean / float64(j+1)
		}
		n += max(0, 1-below)
	}
	return n
}
