// Small programs of the test bed that need nothing but the standard library.
module mfsdp.test/bed/tools

go 1.26.0
