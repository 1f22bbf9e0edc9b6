"""The failure table: its rows, the tests of each row, and the document made of them."""
