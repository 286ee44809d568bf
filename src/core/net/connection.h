// A connection that a loop serves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/net/inbox.h"
#include "core/net/loop.h"
#include "core/net/outbox.h"
#include "core/net/stream.h"

namespace tdock::net {

// The owner of a connection. Called on the loop's thread.
class Handler : public Recipient {
 public:
  // `body` is valid until this returns. An error closes the connection, with a goodbye.
  virtual absl::Status OnMessage(const MessageHeader& header, absl::string_view body) = 0;
  // Nothing is called any more. `why`: what Close() was given, or why the connection is lost: Unavailable, also where
  // the other side has closed it.
  virtual void OnClosed(const absl::Status& why) = 0;
  // False as long as data of this tag, which comes over a joined stream, must wait for what comes over the first one.
  virtual bool IsReadyForJoined(uint64_t tag) {
    static_cast<void>(tag);
    return true;
  }
};

// Used on its loop's thread, unless marked otherwise. It must be gone before the loop stops.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `max_queued_bytes`: with more that the other side has not read, nothing more is read from it. `inbox`: what was
  // read from the stream before; may be null.
  Connection(std::shared_ptr<Loop> loop, std::unique_ptr<Stream> stream, size_t max_queued_bytes,
             std::unique_ptr<Inbox> inbox = nullptr);
  ~Connection();

  // Begins to read. `on_gone` is called when the socket is about to close. Errors are the system's.
  absl::Status Start(std::unique_ptr<Handler> handler, std::function<void()> on_gone = nullptr);
  // From the next message on. The first handler stays until the connection ends.
  void ReplaceHandler(std::unique_ptr<Handler> handler);
  // Sends a message. Thread-safe.
  void Send(std::string message, std::shared_ptr<const FileDescriptor> file = nullptr);
  // Sends a message, and behind it bytes of the call `tag`, which `owner` keeps alive. Thread-safe.
  void SendData(std::string message, uint64_t tag, std::vector<std::span<const std::byte>> pieces,
                std::shared_ptr<const void> owner);
  // Ends it; nothing is handed over any more. Unless `why` is OK, it is sent as a goodbye, as far as that is possible
  // at once, and the socket stays for a while, so that the other side can read that. On another thread: soon.
  void Close(const absl::Status& why);
  // Ends it completely.
  void Abort();
  // A stream of the same client, which has said hello: from now on it carries a part of large data, either way. An
  // error of it ends the connection. FailedPrecondition if there are kMaxJoined already. Thread-safe.
  static constexpr size_t kMaxJoined = 7;
  void Join(std::unique_ptr<Stream> stream, std::string welcome);
  // Gives the stream away, as one that joins another connection; nothing is called any more.
  std::unique_ptr<Stream> Release();

  // To be called about once a second.
  void Tick();

  // Between these no message is handed over. Resume() is thread-safe; an error closes the connection.
  void Pause();
  void Resume(const absl::Status& status);

  Stream& stream() { return *stream_; }
  Loop& loop() { return *loop_; }
  bool closed() const { return closed_; }

 private:
  // Handles what has arrived for the length of one turn, and waits for more.
  void Work();
  absl::Status Turn();
  // False if messages may be left when the turn ends.
  absl::StatusOr<bool> HandOver(absl::Time turn_ends);
  void Flush();
  void OnWritable();
  void AwaitNext();
  void Discard();
  void CloseHere(const absl::Status& why);
  bool choked() const;

  // A joined stream.
  struct Joined;
  void WorkOn(Joined& joined);
  absl::Status TurnOf(Joined& joined);
  void FlushTo(Joined& joined);
  void Lose(Joined& joined, const absl::Status& why);
  // Those that waited for what has arrived over another.
  void WorkOnWaiting();

  const std::shared_ptr<Loop> loop_;
  std::unique_ptr<Stream> stream_;
  const size_t max_queued_bytes_;
  const std::unique_ptr<Waits> waits_;
  std::unique_ptr<Handler> handler_, first_handler_;
  std::unique_ptr<Inbox> inbox_;
  Outbox outbox_;
  std::vector<std::unique_ptr<Joined>> joined_;
  std::function<void()> on_gone_;
  bool shaken_hands_ = false;
  bool paused_ = false;
  bool working_ = false;
  bool held_up_ = false;  // until less is queued
  bool closed_ = false;
  // Since when the socket stays for what was sent last.
  std::optional<absl::Time> lingers_since_;
};

}  // namespace tdock::net
