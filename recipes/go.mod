module github.com/trueup/trueup/recipes

go 1.26.0

require (
	github.com/stretchr/testify v1.12.1
	github.com/vmware/govmomi v0.53.0
)

require (
	github.com/dougm/pretty v0.0.0-20160325215624-add1dbc86daf // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/kr/text v0.2.0 // indirect
	github.com/rogpeppe/go-internal v1.16.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/text v0.34.0 // indirect
)
