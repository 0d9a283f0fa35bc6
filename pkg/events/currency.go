package events

import "strings"

// isoCurrencies are the codes of ISO 4217, by number of decimals. Codes that
// were withdrawn lately stay: events of that time must still decode.
var isoCurrencies = currencies(map[int]string{
	0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF " +
		"XAG XAU XBA XBB XBC XBD XDR XPD XPT XSU XTS XUA XXX",
	2: "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN BWP BYN BZD " +
		"CAD CDF CHE CHF CHW CNY COP COU CRC CUC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL " +
		"GHS GIP GMD GTQ GYD HKD HNL HRK HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR " +
		"LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD PAB " +
		"PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SLL SOS SRD SSP STN SVC SYP " +
		"SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XAD XCD XCG YER ZAR ZMW ZWG ZWL",
	3: "BHD IQD JOD KWD LYD OMR TND",
	4: "CLF UYW",
})

type currency struct {
	code   string
	digits int
}

func currencies(byDigits map[int]string) map[string]currency {
	all := map[string]currency{}
	for digits, codes := range byDigits {
		for _, code := range strings.Fields(codes) {
			all[code] = currency{code: code, digits: digits}
		}
	}
	return all
}

// minorDigits returns the number of decimals of a currency.
func minorDigits(code string) (int, bool) {
	c, ok := isoCurrencies[code]
	return c.digits, ok
}

// currencyName returns the code as a string, without allocating for known ones.
func currencyName(b []byte) string {
	if c, ok := isoCurrencies[string(b)]; ok {
		return c.code
	}
	return string(b)
}
