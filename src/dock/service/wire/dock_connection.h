// A client's connection to a dock server.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/net/connection.h"
#include "core/net/server.h"
#include "core/tensor/frame_reader.h"
#include "dock/service/wire/dock_message.h"
#include "dock/service/wire/service.h"
#include "dock/store/segment_memory.h"
#include "dock/store/segment_view.h"

namespace tdock::service {

struct ConnectionLimits {
  // The limit on incomplete frames of one connection.
  size_t max_uploads = 64;
  uint32_t upload_slots = 16;
  uint32_t upload_slot_bytes = 1 << 20;
  // The limit on runs of adjacent cells in a response over a Unix socket: cells that are more scattered are copied
  // together, so that the message stays short.
  int max_view_runs = 1 << 21;
};

// The parts that connections share, and that must outlive them.
struct ConnectionShared {
  Service& service;
  dock::SegmentPool& segments;
  ConnectionLimits limits = {};
};

// For net::ServerOptions::welcome: begins a session, or joins one that exists. `rest` is a Hello.
absl::StatusOr<net::Welcome> WelcomeToDock(const ConnectionShared& shared,
                                           const std::shared_ptr<net::Connection>& connection, absl::string_view rest);

// Runs on its loop's thread; other threads may call only methods marked thread-safe.
class DockConnection final : public net::Handler {
 public:
  DockConnection(const ConnectionShared& shared, const std::shared_ptr<net::Connection>& connection,
                 std::unique_ptr<Service::Connection> session, std::string client,
                 std::optional<dock::UploadArea> area);

  uint32_t MaxBytes(uint8_t type) const override { return MaxBytesFromClient(type, area_.has_value()); }
  bool IsReadyForJoined(uint64_t tag) override;
  void RoomsFor(uint64_t tag, uint64_t offset, size_t most, std::vector<iovec>& rooms) override;
  absl::Status OnFilled(uint64_t tag, uint64_t offset, size_t bytes) override;
  absl::Status OnData(uint64_t tag, uint64_t offset, std::span<const std::byte> bytes) override;
  absl::Status OnMessage(const net::MessageHeader& header, absl::string_view body) override;
  void OnClosed(const absl::Status& why) override;

 private:
  struct Upload {
    message::Request request;
    FrameReader reader;
    uint64_t in_slots = 0;  // bytes that came that way
  };
  // A response in the form in which it is sent, and the segments that it refers to.
  struct Encoded {
    std::string message;
    std::vector<std::pair<uint64_t, dock::SegmentFile>> segments = {};
    // Or the bytes that follow it.
    std::vector<std::span<const std::byte>> pieces = {};
    std::shared_ptr<const void> owner = {};
  };

  // Has a worker handle what takes long. Until that is done, nothing more is read, and the members marked as the
  // handler's belong to the worker.
  template <class Work>
  absl::Status HandOver(Work work);
  void TakeBack(const absl::Status& status);
  // On the loop's thread or the worker.
  absl::Status OnCall(uint64_t tag, absl::string_view body);
  absl::Status OnSlot(uint64_t tag, absl::string_view body);
  absl::Status Place(uint64_t tag, uint64_t offset, std::span<const std::byte> bytes);
  absl::Status CheckUpload(uint64_t tag, const absl::Status& status);
  void NoteEnd(uint64_t tag);
  void Start(message::Request request, Batch batch);

  // Thread-safe.
  ReplyTo ReplyHere(uint64_t call);
  void ReplyError(uint64_t call, const absl::Status& status);
  // Thread-safe. The response to send, or its replacement.
  static Encoded MessageOf(const ConnectionShared& shared, bool is_local, Session& session, uint64_t call,
                           const Answer& answer);
  // ResourceExhausted if it is too long, or if too many cells lie in no segment.
  static absl::StatusOr<Encoded> TryToEncode(const ConnectionShared& shared, bool is_local, Session& session,
                                             uint64_t call, const Answer& answer);
  // A response with these views of its rows. OutOfRange if that is too long.
  static absl::StatusOr<Encoded> EncodeWithViews(const ConnectionShared& shared, uint64_t call, const Answer& answer,
                                                 const Rows& rows);
  // A response that the bytes of its rows follow.
  static absl::StatusOr<Encoded> EncodeWithBytes(const ConnectionShared& shared, Session& session, uint64_t call,
                                                 const Answer& answer);
  void SendAnswer(Encoded answer);
  void TellGoneSegments();

  const ConnectionShared shared_;
  const std::weak_ptr<net::Connection> connection_;
  const std::shared_ptr<net::Loop> loop_;
  const std::string client_;                    // for people to read
  const std::optional<dock::UploadArea> area_;  // over a Unix socket

  // The handler's.
  std::unique_ptr<Service::Connection> session_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Upload>> uploads_;
  absl::flat_hash_set<uint64_t> ended_;  // some of those that are over

  bool handed_over_ = false;
  bool closed_ = false;
  // The segments that the client was sent.
  absl::flat_hash_set<uint64_t> segments_;
  uint64_t closed_segments_seen_ = 0;
};

}  // namespace tdock::service
