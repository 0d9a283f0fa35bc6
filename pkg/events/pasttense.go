package events

import (
	"fmt"
	"slices"
	"strings"
)

// checkTypeName wants domain.past_tense_fact: two parts in lower snake case, the
// second ending in a verb in the past tense, or in one and its particle
// ("signed_up").
func checkTypeName(name string, words []string) error {
	domain, fact, ok := strings.Cut(name, ".")
	if !ok || !isSnake(domain) || !isSnake(fact) || len(name) > MaxIDBytes {
		return fmt.Errorf("events: type %q is not domain.past_tense_fact in lower snake case: name it like \"order.placed\"", clip(name))
	}
	parts := strings.Split(fact, "_")
	last := parts[len(parts)-1]
	if isPastTense(last, words) {
		return nil
	}
	if len(parts) > 1 && slices.Contains(particles, last) && isPastTense(parts[len(parts)-2], words) {
		return nil
	}
	return fmt.Errorf("events: type %q: %q is not past tense: an event says what has happened (\"order.placed\"); "+
		"if the word is right, allow it with events.PastTense(%q)", name, last, last)
}

func isSnake(s string) bool {
	if s == "" || s[0] < 'a' || s[0] > 'z' || s[len(s)-1] == '_' || strings.Contains(s, "__") {
		return false
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; c != '_' && !isDigit(c) && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

func isPastTense(word string, more []string) bool {
	if slices.Contains(more, word) {
		return true
	}
	if _, irregular := irregularPast[word]; irregular {
		return true
	}
	if !strings.HasSuffix(word, "ed") || len(word) < 4 {
		return false
	}
	// "need", "proceed" and "feed" are no past tense; "agreed" is.
	if strings.HasSuffix(word, "eed") {
		return slices.Contains(pastInEed, word)
	}
	return !slices.Contains(notPast, word)
}

var (
	particles = strings.Fields("up in out off on over down back away through again together apart")
	pastInEed = strings.Fields("agreed disagreed freed guaranteed decreed refereed")
	notPast   = strings.Fields("embed sled hundred sacred naked wicked kindred moped biped shred bred")
)

var irregularPast = wordSet(`
	arose arisen awoke awoken ate eaten beat beaten became become began begun bent beset bet bid bitten bit
	blew blown bore born borne bought bound bred broadcast broke broken brought built burnt burst came cast
	caught chose chosen clung come cost crept cut dealt did done dove drank drawn dreamt drew driven drove drunk dug
	fallen fed fell felt fled flew flown flung forbade forbidden forecast foregone foreseen foretold forgave
	forgiven forgone forgot forgotten forwent fought found froze frozen gave given gone got gotten grew ground
	grown had heard held hid hidden hit hung hurt input kept knelt knew known laid lain leant leapt learnt
	led left lent let lit lost made meant met misled mislaid misread mistaken mistook misunderstood output
	outbid outdone outgrown outrun outsold overcame overcome overdone overdrawn overheard overlaid overpaid
	overran overridden overrode overrun overseen oversold overspent overtaken overthrown overtook overwritten
	overwrote paid partaken preset prepaid proven put quit ran rang read rebound rebroadcast rebuilt recast redone
	redrawn regrown relaid relit remade repaid reran rerun resent reset resold retaken retold rethought retook
	rewound rewritten rewrote rid ridden risen rode rose rung said sang sank sat saw seen sent set sewn shaken
	shed shone shook shot shown shrank shrunk shut slain slept slid slung sold sought sown sped spelt spent
	spilt split spoilt spoke spoken spread sprang sprung spun stole stolen stood stuck stung stricken struck
	strung strewn sublet sung sunk swam swept swollen swore sworn swum swung taken taught thought threw thrown
	thrust told took tore torn typeset undercut undergone underpaid understood undertaken undertook underwent
	underwritten undid undone unfrozen unset unwound upheld upset withdrawn withdrew withheld withstood
	woke woken won wore worn wound woven wove wrote written wrung went
`)

func wordSet(words string) map[string]struct{} {
	set := map[string]struct{}{}
	for _, w := range strings.Fields(words) {
		set[w] = struct{}{}
	}
	return set
}
