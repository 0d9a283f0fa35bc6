package domain

import "strings"

// FallbackLanguage is the one that every template exists in.
const FallbackLanguage = "en"

// NormalizeLanguage writes a language tag in lower case with hyphens; what is
// no tag becomes FallbackLanguage.
func NormalizeLanguage(tag string) string {
	tag = strings.ReplaceAll(strings.ToLower(strings.TrimSpace(tag)), "_", "-")
	if len(tag) < 2 || len(tag) > 35 {
		return FallbackLanguage
	}
	for i := range len(tag) {
		c := tag[i]
		if c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return FallbackLanguage
		}
	}
	return tag
}

// LanguageChain lists the languages to try for tag, most fitting first:
// "de-at" gives de-at, de, en.
func LanguageChain(tag string) []string {
	tag = NormalizeLanguage(tag)
	var chain []string
	for tag != "" {
		chain = append(chain, tag)
		i := strings.LastIndexByte(tag, '-')
		if i < 0 {
			break
		}
		tag = tag[:i]
	}
	if chain[len(chain)-1] != FallbackLanguage {
		chain = append(chain, FallbackLanguage)
	}
	return chain
}
