module github.com/onefill/onefill

go 1.25.0

require github.com/maypok86/otter/v2 v2.4.0
