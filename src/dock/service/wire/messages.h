// The messages between a dock's clients and its server (docs/wire-format.md). Each is sent as its fields, numbered in
// the order of the struct's list but where the struct says otherwise. Texts may be any bytes: the dock checks whether
// they are UTF-8, and reports it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dock/service/wire/field_codec.h"
#include "tdock/batch.h"
#include "tdock/rows.h"

namespace tdock::service {
namespace message {

// The rest of the first message of a connection (core/net/message.h).
struct Hello {
  // The session that the connection belongs to; none: a new one.
  std::string session = {};
  // The client's name, for people who look at the server's status.
  std::string client = {};

  TDOCK_FIELDS(Hello, session, client)
};

struct Welcome {
  std::string session = {};  // 16 bytes
  // Differs between starts of the server.
  uint64_t instance = 0;
  // The session existed.
  bool resumed = false;
  // The upload area, if bytes go through shared memory.
  uint32_t upload_slots = 0;
  uint32_t upload_slot_bytes = 0;
  // The limit on one batch.
  uint64_t max_frame_bytes = 0;

  TDOCK_FIELDS(Welcome, session, instance, resumed, upload_slots, upload_slot_bytes, max_frame_bytes)
};

// Numbers of bodies that are no verb of TDOCK_VERBS: a Cancel, a Release, and nothing.
inline constexpr int kCancel = 34;
inline constexpr int kAcknowledge = 35;
inline constexpr int kPing = 36;

struct Request {
  // Ascending within a session, from 1. The same number again is the same call: it is answered once.
  uint64_t call = 0;
  // The responses to all calls below this number have arrived.
  uint64_t answered_below = 0;
  // Pins that are released before the call is carried out, because acknowledgements over another connection may not
  // have arrived yet.
  std::vector<uint64_t> released = {};
  // From answered_below on, the calls whose responses have arrived.
  std::vector<uint64_t> answered = {};
  // The number of the verb or of the three above; 0: none that is known. It is the number of the body's field.
  int verb = 0;
  // The verb's request, encoded (field_codec.h).
  std::string body = {};

  static constexpr int kNumbers[] = {1, 2, 3, 4, 0, 0};
  TDOCK_FIELDS(Request, call, answered_below, released, answered, verb, body)
};

// Ends the wait of another call of this session.
struct Cancel {
  uint64_t call = 0;

  TDOCK_FIELDS(Cancel, call)
};

// Pins of views that are gone.
struct Release {
  std::vector<uint64_t> pins = {};

  TDOCK_FIELDS(Release, pins)
};

struct Names {
  std::vector<std::string> names = {};

  TDOCK_FIELDS(Names, names)
};

struct PutResult {
  std::vector<uint64_t> rows = {};
  // Instead, if the put has field 18: this many rows with consecutive ids, from the first on.
  uint64_t first = 0;
  uint64_t count = 0;

  TDOCK_FIELDS(PutResult, rows, first, count)
};

// Cells with equal properties.
struct CellRun {
  uint64_t count = 0;
  int64_t weights_version = 0;
  bool partial = false;
  bool absent = false;

  TDOCK_FIELDS(CellRun, count, weights_version, partial, absent)
};

struct CellPieces {
  // The position of the cell, column after column.
  uint64_t cell = 0;
  std::vector<int64_t> ends = {};
  std::vector<int64_t> weights_versions = {};

  TDOCK_FIELDS(CellPieces, cell, ends, weights_versions)
};

// Contiguous cells.
struct ViewRun {
  uint64_t segment = 0;
  uint64_t offset = 0;
  // This many cells of this many bytes; or else, cells of these sizes.
  uint64_t count = 0;
  uint64_t cell_bytes = 0;
  std::vector<uint64_t> each_bytes = {};
  // The offset is one in inline_bytes, or in the bytes that follow the reply.
  bool is_inline = false;

  TDOCK_FIELDS(ViewRun, segment, offset, count, cell_bytes, each_bytes, is_inline)
};

// Rows that are handed out. Per-row lists are empty if all rows have the default: no group, no redelivery, no key, no
// tags, age 0, epoch 0.
struct Rows {
  std::vector<uint64_t> ids = {};
  std::vector<GroupId> groups = {};
  std::vector<int32_t> redeliveries = {};
  std::vector<std::string> keys = {};
  // The different sets of tags, encoded, and which of them each row has, counted from 1; 0: none.
  std::vector<std::string> tag_sets = {};
  std::vector<uint32_t> tags = {};
  std::vector<int32_t> ages = {};
  std::vector<uint32_t> epochs = {};
  std::vector<std::string> columns = {};  // each an encoded ColumnSpec
  // The cells, column after column, in runs of cells with equal properties.
  std::vector<CellRun> cells = {};
  std::vector<CellPieces> pieces = {};
  // Where the cells are that exist, column after column, in runs of adjacent cells. They stay until the pin is
  // released.
  std::vector<ViewRun> views = {};
  uint64_t pin = 0;
  // The bytes of the runs that are in no segment; or so many bytes that follow the reply as data hold them.
  std::string inline_bytes = {};
  uint64_t streamed_bytes = 0;

  TDOCK_FIELDS(Rows, ids, groups, redeliveries, keys, tag_sets, tags, ages, epochs, columns, cells, pieces, views, pin,
               inline_bytes, streamed_bytes)
};

struct Taken {
  uint64_t lease = 0;
  int64_t remaining = 0;  // as in Remaining
  Rows rows = {};

  TDOCK_FIELDS(Taken, lease, remaining, rows)
};

struct Remaining {
  // Nanoseconds from when the response was written; the largest int64: never.
  int64_t remaining = 0;

  TDOCK_FIELDS(Remaining, remaining)
};

struct RowIds {
  std::vector<uint64_t> rows = {};

  TDOCK_FIELDS(RowIds, rows)
};

// A struct of the dock, encoded (field_codec.h), or a text.
struct Encoded {
  enum Number : int { kNone = 0, kList = 16, kStatus = 18, kConsumerStatus = 19, kText = 20, kRowStatus = 21 };
  Number number = kNone;  // of its field
  std::string bytes = {};
};

// The result of a verb. Structs are the fields from 10 on, in this order; the number is 17.
using ReplyBody = std::variant<std::monostate, Names, PutResult, Taken, Rows, Remaining, RowIds, int64_t, Encoded>;

struct Reply {
  // An absl::StatusCode; 0: success.
  uint32_t code = 0;
  std::string message = {};
  ReplyBody body = {};

  TDOCK_FIELDS(Reply, code, message, body)
};

}  // namespace message

// For Hello, Welcome, Request, Cancel, Release, Reply and Rows. `room`: zeros before the message.
template <HasFields T>
std::string Serialize(const T& message, size_t room = 0) {
  return Encode(message, absl::UnixEpoch(), room);
}
// InvalidArgument for what cannot be such a message. Unknown fields are skipped; what is allocated is at most a small
// multiple of the bytes.
template <HasFields T>
absl::StatusOr<T> Parse(absl::string_view bytes) {
  return Decode<T>(bytes);
}

// The rows of a taken or of rows; null for other replies.
inline message::Rows* RowsIn(message::Reply& reply) {
  if (auto* const taken = std::get_if<message::Taken>(&reply.body)) return &taken->rows;
  return std::get_if<message::Rows>(&reply.body);
}
inline const message::Rows* RowsIn(const message::Reply& reply) { return RowsIn(const_cast<message::Reply&>(reply)); }

// Nanoseconds on the wire: the largest int64 means never, the smallest the infinite past.
int64_t ToWire(absl::Duration duration);
absl::Duration DurationFromWire(int64_t nanoseconds);

// The error of a call. A code that absl does not know becomes Unknown.
void Encode(const absl::Status& status, message::Reply* reply);
absl::Status StatusOf(const message::Reply& reply);

// A request of the verb, with times as they are at `now`.
template <class V>
message::Request RequestOf(const typename V::Request& asked, absl::Time now = absl::UnixEpoch()) {
  message::Request request{.verb = V::kNumber};
  if constexpr (HasFields<typename V::Request>) request.body = Encode(asked, now);
  return request;
}
// The batch that travels as a frame behind the request; null if it has none.
template <class Request>
auto BatchOf(Request& request) {
  if constexpr (requires { request.batch; }) {
    return &request.batch;
  } else if constexpr (requires { request.image; }) {
    return &request.image;
  } else {
    return static_cast<Batch*>(nullptr);
  }
}
// True if a frame follows: a put's, a fill's, or an image.
bool HasFrame(const message::Request& request);
// A description of the request, for people.
const char* NameOf(const message::Request& request);

}  // namespace tdock::service
