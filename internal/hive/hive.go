// Package hive reads registry hives of Windows (regf), and tells where the data of a value lie in the file.
package hive
