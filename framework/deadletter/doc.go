// Package deadletter looks at dead letters and brings them back, over any
// broker: list, browse, group by what failed, replay, discard, edit, export and
// import. A Queue is the dead letters of one consumer group.
//
// # What is guaranteed
//
// A message leaves the dead letters only after it stands somewhere else, and
// the broker or the disk has confirmed that: Replay publishes before it
// deletes, Discard writes the archive before it deletes, Edit publishes the new
// letter before it deletes the old one. So a crash, a SIGKILL or a lost
// connection at any point leaves each message in at least one place from which
// it can be recovered. It may leave it in two, in one window: after the
// publish was confirmed and before the deletion. Then:
//
//   - With ReplayOptions.Journal the next Replay knows the message as published
//     and only deletes it. Without the journal, or where the crash came between
//     the broker's confirmation and the journal's line, it is published again
//     with the same id; the group's inbox knows the id once it was handled, so
//     the second copy has no effect. A handler with NoDedup handles it again.
//   - After an Edit, Replay knows the letter that was replaced by the one that
//     replaces it, and deletes it unpublished, as long as the latter is there.
//   - After a Discard, the message is in the archive and still in the queue: a
//     second Discard archives and deletes it again.
//
// A replay goes to the group's redrive topic, which only that group reads:
// no other group sees the message again. Bytes, id and metadata are those that
// the handler failed on; the story's keys are gone but for the redrive count,
// which is one higher. Messages of one key are published in the order in which
// they were dead-lettered; when one of them has to stay, the later ones of its
// key stay behind it.
//
// The letters of a handler that parks keys (Letter.ParksKey) are replayed in the
// order of their places in their key, wherever they lie; the handler sends back
// what is not the first of its key. Discard tells the group over the redrive
// topic, before it deletes such a letter, that nothing needs to wait for it any
// more; cut off in between it does so again, which has no effect.
//
// Two replays of one queue at the same time lose nothing; they may publish a
// message twice, with the effect described above.
package deadletter
