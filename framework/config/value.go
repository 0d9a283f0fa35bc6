package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Value returns the text of a profile's key, such as "delivery.lease"; a secret
// is redacted. It is empty for a key that the profile does not have.
func Value(p Profile, key string) string {
	v := reflect.ValueOf(p)
	for _, part := range strings.Split(key, ".") {
		if v.Kind() != reflect.Struct || part == "" {
			return ""
		}
		at := -1
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get("koanf") == part {
				at = i
			}
		}
		if at < 0 {
			return ""
		}
		v = v.Field(at)
	}
	if v.Kind() == reflect.Struct {
		return "" // a section
	}
	return fmt.Sprint(plain(v))
}
