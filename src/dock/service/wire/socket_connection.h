// One connection of the Unix socket, on the server.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/tensor/frame_reader.h"
#include "dock/service/wire/event_loop.h"
#include "dock/service/wire/service.h"
#include "dock/service/wire/socket_message.h"
#include "dock/store/segment_memory.h"
#include "dock/store/segment_view.h"

namespace tdock::service {

struct SocketLimits {
  // The limit on incomplete frames of one connection.
  size_t max_uploads = 64;
  // The limit on responses that the client has not read: beyond it, no more requests are read.
  size_t max_queued_bytes = size_t{16} << 20;
  // The time within which a connection must say hello, or it is closed.
  absl::Duration hello_within = absl::Seconds(10);
  uint32_t upload_slots = 16;
  uint32_t upload_slot_bytes = 1 << 20;
  // The limit on runs of adjacent cells in a response: cells that are more scattered are copied together, so that the
  // message stays short.
  size_t max_view_runs = size_t{1} << 21;
};

// Runs on its loop's thread; other threads may call only methods marked thread-safe.
class SocketConnection : public std::enable_shared_from_this<SocketConnection> {
 public:
  struct Shared {
    Service& service;
    dock::SegmentPool& segments;
    SocketLimits limits;
  };

  // Takes ownership of the socket, which must be non-blocking.
  SocketConnection(int fd, std::shared_ptr<EventLoop> loop, const Shared& shared,
                   std::function<void(int fd)> on_closed);
  ~SocketConnection();

  absl::Status Start();
  // Closes it if it has not said hello in time.
  void Tick();
  // Sends the reason, as far as that is possible at once, and closes.
  void Close(const absl::Status& why);

 private:
  struct Outgoing {
    std::string bytes;
    size_t sent = 0;
    // Sent with the first byte.
    std::shared_ptr<const dock::FileDescriptor> file = {};
  };
  struct Upload {
    message::Request request;
    FrameReader reader;
  };

  // A response in the form in which it is sent, and the segments that it refers to.
  struct Encoded {
    std::string message;
    std::vector<std::pair<uint64_t, dock::SegmentFile>> segments = {};
  };

  void OnEvents(uint32_t events);
  void Read();
  // Handles complete messages, for the length of one turn.
  void HandleMessages();
  // Whether the message takes long to handle.
  bool IsLong(const SocketHeader& header, absl::string_view body);
  // Has a worker handle the next message. Until that is done, nothing more is read, and the members marked as the
  // handler's belong to the worker.
  void HandOver(size_t begin, const SocketHeader& header);
  void TakeBack(const absl::Status& status);
  // On the loop's thread or the worker.
  absl::Status Handle(const SocketHeader& header, absl::string_view body);
  absl::Status OnHello(absl::string_view body);
  absl::Status OnCall(uint64_t tag, absl::string_view body);
  absl::Status OnBytes(uint64_t tag, std::span<const std::byte> bytes);
  absl::Status OnSlot(uint64_t tag, absl::string_view body);
  void Start(message::Request request, Batch batch);
  // Thread-safe.
  ReplyTo ReplyHere(uint64_t call);

  void ReplyError(uint64_t call, const absl::Status& status);
  // Thread-safe. The response to send, or its replacement.
  static Encoded MessageOf(const Shared& shared, Session& session, uint64_t call, const Answer& answer);
  // ResourceExhausted if it is too long, or if too many cells lie in no segment.
  static absl::StatusOr<Encoded> TryToEncode(const Shared& shared, Session& session, uint64_t call,
                                             const Answer& answer);
  // A response with these views of its rows. OutOfRange if that is too long.
  static absl::StatusOr<Encoded> EncodeRows(const Shared& shared, uint64_t call, const Answer& answer,
                                            const Rows& rows);
  void SendAnswer(Encoded answer);
  void TellGoneSegments();
  // On the loop's thread or the worker.
  void Send(std::string bytes, std::shared_ptr<const dock::FileDescriptor> file = nullptr);
  // Sends what the client accepts, up to a bound.
  void Flush();
  void Watch();
  bool choked() const { return queued_bytes_ > shared_.limits.max_queued_bytes; }

  const int fd_;
  const std::shared_ptr<EventLoop> loop_;
  const Shared shared_;
  const std::function<void(int fd)> on_closed_;
  const absl::Time opened_;
  bool closed_ = false;

  // The handler's.
  std::unique_ptr<Service::Connection> connection_;
  std::string client_;  // for people to read
  std::optional<dock::UploadArea> area_;
  std::string in_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Upload>> uploads_;

  bool more_posted_ = false;
  bool handed_over_ = false;
  // The peer is gone, which epoll would report again and again; watched again once reading continues.
  bool unwatched_ = false;

  std::deque<Outgoing> out_;
  size_t queued_bytes_ = 0;
  uint32_t watched_events_ = 0;
  // The segments that the client was sent, and their sizes.
  absl::flat_hash_set<uint64_t> segments_;
  uint64_t closed_segments_seen_ = 0;
};

}  // namespace tdock::service
