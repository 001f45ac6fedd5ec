CREATE TABLE settings (
	id INTEGER PRIMARY KEY,
	version TEXT NOT NULL,
	options TEXT NOT NULL,
	UNIQUE (version, options)
);

CREATE TABLE run (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	settings INTEGER NOT NULL REFERENCES settings (id),
	started TEXT NOT NULL,
	finished TEXT,
	complete INTEGER NOT NULL DEFAULT 0,
	storage TEXT NOT NULL DEFAULT '',
	boundary_bytes INTEGER NOT NULL DEFAULT 0,
	images INTEGER NOT NULL DEFAULT 0,
	aligned INTEGER NOT NULL DEFAULT 0,
	below_boundary INTEGER NOT NULL DEFAULT 0,
	misaligned INTEGER NOT NULL DEFAULT 0,
	nothing_to_judge INTEGER NOT NULL DEFAULT 0,
	failed INTEGER NOT NULL DEFAULT 0,
	orphans INTEGER NOT NULL DEFAULT 0,
	originals INTEGER NOT NULL DEFAULT 0,
	packed INTEGER NOT NULL DEFAULT 0,
	accepted INTEGER NOT NULL DEFAULT 0,
	new INTEGER NOT NULL DEFAULT 0,
	changed INTEGER NOT NULL DEFAULT 0,
	same INTEGER NOT NULL DEFAULT 0,
	removed INTEGER NOT NULL DEFAULT 0,
	skipped_files INTEGER NOT NULL DEFAULT 0,
	unreadable INTEGER NOT NULL DEFAULT 0,
	copies_bytes INTEGER NOT NULL DEFAULT 0,
	grows_bytes INTEGER NOT NULL DEFAULT 0,
	read_bytes INTEGER NOT NULL DEFAULT 0,
	exit_code INTEGER
);

CREATE TABLE run_path (
	run INTEGER NOT NULL REFERENCES run (id),
	number INTEGER NOT NULL,
	path TEXT NOT NULL,
	PRIMARY KEY (run, number)
) WITHOUT ROWID;

CREATE TABLE file (
	id INTEGER PRIMARY KEY,
	path TEXT NOT NULL UNIQUE,
	size_bytes INTEGER NOT NULL,
	device INTEGER NOT NULL,
	inode INTEGER NOT NULL,
	modified_ns INTEGER NOT NULL,
	changed_ns INTEGER NOT NULL,
	is_image INTEGER NOT NULL,
	ident BLOB NOT NULL,
	beside TEXT NOT NULL,
	settings INTEGER REFERENCES settings (id),
	last_run INTEGER NOT NULL REFERENCES run (id)
);

CREATE TABLE image (
	id INTEGER PRIMARY KEY REFERENCES file (id),
	state TEXT NOT NULL,
	verdict TEXT,
	content TEXT,
	format TEXT,
	subformat TEXT,
	size_bytes INTEGER NOT NULL,
	stored_bytes INTEGER NOT NULL,
	priority_class INTEGER,
	cost_percent REAL,
	error_code TEXT,
	error TEXT,
	digest BLOB,
	reported BLOB,
	first_run INTEGER NOT NULL REFERENCES run (id),
	last_run INTEGER NOT NULL REFERENCES run (id),
	changed_run INTEGER NOT NULL REFERENCES run (id),
	result_run INTEGER NOT NULL REFERENCES run (id)
);

CREATE TABLE result (
	id INTEGER PRIMARY KEY REFERENCES image (id),
	json BLOB NOT NULL
);

CREATE TABLE partition (
	image INTEGER NOT NULL REFERENCES image (id),
	disk INTEGER NOT NULL,
	nth INTEGER NOT NULL,
	member TEXT,
	number INTEGER NOT NULL,
	kind TEXT NOT NULL,
	type TEXT NOT NULL,
	start_lba INTEGER NOT NULL,
	start_bytes INTEGER NOT NULL,
	size_bytes INTEGER NOT NULL,
	volume TEXT,
	label TEXT,
	verdict TEXT,
	PRIMARY KEY (image, disk, nth)
) WITHOUT ROWID;

CREATE VIEW images AS
SELECT f.path, i.state, i.verdict, i.content, i.format, i.subformat, i.size_bytes, i.stored_bytes, i.priority_class, i.cost_percent,
	i.error_code, i.error, a.started AS first_seen, b.started AS last_seen, c.started AS last_changed, i.first_run, i.changed_run
FROM image i JOIN file f ON f.id = i.id
JOIN run a ON a.id = i.first_run JOIN run b ON b.id = i.last_run JOIN run c ON c.id = i.changed_run;

CREATE VIEW partitions AS
SELECT f.path, p.member, p.disk, p.number, p.kind, p.type, p.start_lba, p.start_bytes, p.size_bytes, p.volume, p.label, p.verdict
FROM partition p JOIN file f ON f.id = p.image;

CREATE VIEW runs AS
SELECT r.id AS run, r.started, r.finished, r.complete, s.version, s.options,
	(SELECT group_concat(path, char(10)) FROM run_path p WHERE p.run = r.id) AS paths,
	r.boundary_bytes, r.storage, r.images, r.aligned, r.below_boundary, r.misaligned, r.nothing_to_judge,
	r.failed, r.orphans, r.originals, r.packed, r.accepted, r.new, r.changed, r.same, r.removed, r.skipped_files, r.unreadable, r.copies_bytes, r.grows_bytes, r.read_bytes, r.exit_code
FROM run r JOIN settings s ON s.id = r.settings;
