#include "dock/service/wire/field_codec.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <stop_token>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "dock/service/wire/byte_writer.h"
#include "dock/service/wire/messages.h"
#include "tdock/options.h"
#include "tdock/verbs.h"

namespace tdock::service {
namespace {

static_assert(std::endian::native == std::endian::little, "fixed numbers are copied");

// How a field is sent.
enum Form : uint32_t { kVarint = 0, kFixed64 = 1, kDelimited = 2, kFixed32 = 5 };

template <class T>
concept IsNumber = std::is_integral_v<T> || std::is_enum_v<T> || std::is_same_v<T, absl::Duration>;

template <class T>
concept IsRequest = requires { &T::partition; };

// False for a status without a lease.
template <class T>
bool HasTimes(const T&) {
  return true;
}
bool HasTimes(const RowConsumerStatus& status) { return status.lease != kNoLease; }

template <class Value>
concept OfGroups = std::is_same_v<Value, GroupId> || std::is_same_v<Value, std::vector<GroupId>>;

// True for ids of groups and servers, which have many digits.
template <class T, class Value>
constexpr bool IsFixed(Value T::*member) {
  const auto is = [member](auto other) {
    if constexpr (std::is_same_v<decltype(other), Value T::*>) return member == other;
    return false;
  };
  bool fixed = false;
  if constexpr (requires { &T::group; }) fixed |= is(&T::group);
  if constexpr (requires { &T::groups; }) fixed |= is(&T::groups);
  if constexpr (requires { &T::instance; }) fixed |= is(&T::instance);
  return fixed;
}

// A column of a status: the message has its name and type as a ColumnSpec.
struct SentColumnStatus {
  ColumnSpec spec = {};
  bool typed = false;
  int64_t ready_cells = 0;

  TDOCK_FIELDS(SentColumnStatus, spec, typed, ready_cells)
};

struct SentTags {
  std::vector<std::string> names = {};
  std::vector<std::string> values = {};

  TDOCK_FIELDS(SentTags, names, values)
};

// The field of a reply that is a number. Those of its structs are the places of their alternatives, counted from 10 on.
constexpr int kCountOfReply = 17;
constexpr int kNumberOfFirstBody = 10;

bool IsBodyOfRequest(int number) {
  return number == message::kCancel || number == message::kAcknowledge || number == message::kPing ||
         VisitVerb(number, []<class V>() {});
}

// ---- Writing.

// Out: a ByteCounter, or a ByteWriter.
template <class Out>
class FieldSender {
 public:
  FieldSender(absl::Time now, Out& out) : now_(now), out_(out) {}

  template <class T>
  void Fields(const T& value) {
    ForEachNumber<T>([&](int number, absl::string_view name, auto member) {
      const auto& field = value.*member;
      if constexpr (std::is_same_v<decltype(field), const message::ReplyBody&>) {
        std::visit([&](const auto& body) { Body(field.index(), body); }, field);
      } else if constexpr (std::is_same_v<T, message::Request>) {
        if (number != 0) Field(number, name, field);
      } else if constexpr (std::is_same_v<T, RegisterRequest> &&
                           std::is_same_v<decltype(field), const ConsumerOptions&>) {
        // Its fields continue those of the request.
        ForEachNumber<ConsumerOptions>([&](int place, absl::string_view of_option, auto option) {
          Field(number + place - 1, of_option, field.*option);
        });
      } else if constexpr (std::is_same_v<decltype(field), const absl::Time&>) {
        if (HasTimes(value)) Field(number, name, field);
      } else if constexpr (std::is_same_v<decltype(field), const Tags&>) {
        // A request has them even if there are none.
        if (!field.empty() || IsRequest<T>) Field(number, name, field);
      } else {
        if (std::is_same_v<T, PutRequest> && name == "groups") Field(kStepOfPut, "step", kNoStep);
        if constexpr (OfGroups<std::remove_cvref_t<decltype(field)>>) {
          if (IsFixed(member)) return Fixed(number, field);
        }
        Field(number, name, field);
      }
    });
    if constexpr (std::is_same_v<T, message::Request>) {
      if (value.verb != 0) Field(value.verb, value.body, /*always=*/true);
    }
  }

  void SetOfTags(const Tags& tags) {
    for (const auto& [name, value] : tags) Field(1, name, /*always=*/true);
    for (const auto& [name, value] : tags) Field(2, value, /*always=*/true);
  }
  void Varint(uint64_t value) { out_.Varint(value); }
  void Key(int number, Form form) { out_.Varint(static_cast<uint64_t>(number) << 3 | form); }

  template <IsNumber T>
  void Field(int number, absl::string_view, T value) {
    const uint64_t sent = ToVarint(value);
    if (sent == 0) return;
    Key(number, kVarint);
    out_.Varint(sent);
  }

 private:
  template <class T>
  static uint64_t ToVarint(T value) {
    return static_cast<uint64_t>(value);
  }
  static uint64_t ToVarint(absl::Duration value) { return static_cast<uint64_t>(ToWire(value)); }
  void Fixed(int number, GroupId value) {
    if (value == 0) return;
    Key(number, kFixed64);
    out_.Bytes(&value, sizeof(value));
  }
  void Fixed(int number, const std::vector<GroupId>& values) {
    if (values.empty()) return;
    Key(number, kDelimited);
    out_.Varint(values.size() * sizeof(GroupId));
    out_.Bytes(values.data(), values.size() * sizeof(GroupId));
  }
  // Adds what `write` writes, after its length.
  template <class Write>
  void Delimited(int number, Write write) {
    Key(number, kDelimited);
    const auto begin = out_.Begin();
    write();
    out_.End(begin);
  }

  template <HasFields T>
  void Body(size_t place, const T& body) {
    Field(kNumberOfFirstBody - 1 + static_cast<int>(place), "body", body);
  }
  void Body(size_t, const message::Encoded& body) { Field(body.number, body.bytes, /*always=*/true); }
  void Body(size_t, int64_t count) {
    Key(kCountOfReply, kVarint);
    out_.Varint(static_cast<uint64_t>(count));
  }
  void Body(size_t, std::monostate) {}

  void Field(int number, const std::string& bytes, bool always) {
    if (bytes.empty() && !always) return;
    Key(number, kDelimited);
    out_.Varint(bytes.size());
    out_.Bytes(bytes.data(), bytes.size());
  }
  void Field(int number, absl::string_view, const std::string& text) { Field(number, text, /*always=*/false); }
  void Field(int number, absl::string_view name, absl::Time time) {
    Field(number, name, name == "taken" ? now_ - time : time - now_);
  }
  void Field(int number, absl::string_view name, const Batch& batch) { Field(number, name, !batch.empty()); }
  void Field(int, absl::string_view, const std::stop_token&) {}
  void Field(int number, absl::string_view, const std::optional<RowId>& row) {
    if (!row.has_value()) return;
    Key(number, kVarint);
    out_.Varint(*row);
  }
  // The digits of a shape beyond the limit are dropped, but not the fact that there were some.
  void Field(int number, absl::string_view name, const ColumnType& type) {
    Field(number, name, type.kind);
    Field(number + 1, name, type.dtype);
    std::vector<int64_t> shape(type.row_shape.begin(), type.row_shape.end());
    if (type.row_shape.too_long()) shape.push_back(1);
    Field(number + 2, name, shape);
  }
  void Field(int number, absl::string_view, const Tags& tags) {
    Delimited(number, [&] { SetOfTags(tags); });
  }
  void Field(int number, absl::string_view name, const ColumnStatus& column) {
    Field(number, name, SentColumnStatus{{column.name, column.type}, column.typed, column.ready_cells});
  }
  template <HasFields T>
  void Field(int number, absl::string_view, const T& value) {
    Delimited(number, [&] { Fields(value); });
  }
  template <class T>
  void Field(int number, absl::string_view name, const std::vector<T>& values) {
    if constexpr (!IsNumber<T>) {
      for (const T& value : values) {
        if constexpr (std::is_same_v<T, std::string>) {
          Field(number, value, /*always=*/true);
        } else {
          Field(number, name, value);
        }
      }
    } else if (!values.empty()) {
      Delimited(number, [&] {
        for (const T value : values) out_.Varint(ToVarint(value));
      });
    }
  }

  const absl::Time now_;
  Out& out_;
};

// Returns the bytes that `send` sends, behind zeros.
template <class Send>
std::string Sent(absl::Time now, size_t zeros, Send send) {
  ByteCounter counter;
  send(FieldSender(now, counter));
  std::string bytes(zeros + counter.count(), '\0');
  ByteWriter writer(bytes.data() + zeros);
  send(FieldSender(now, writer));
  return bytes;
}

// ---- Reading.

size_t CountVarints(absl::string_view packed) {
  return static_cast<size_t>(std::count_if(packed.begin(), packed.end(), [](char byte) { return (byte & 0x80) == 0; }));
}

absl::Status Unreadable() { return absl::InvalidArgumentError("a message that cannot be read"); }

class FieldReceiver {
 public:
  FieldReceiver(absl::Time now, absl::string_view rest) : now_(now), rest_(rest) {}

  bool done() const { return rest_.empty(); }
  bool ok() const { return ok_; }

  // The next field: its number, and its value in one of these.
  int number = 0;
  Form form = kVarint;
  uint64_t value = 0;
  absl::string_view bytes = {};

  // Reads the next field; false if there is none.
  bool Next() {
    if (done() || !ok_) return false;
    const uint64_t key = Varint();
    number = static_cast<int>(key >> 3);
    form = static_cast<Form>(key & 7);
    if (form == kVarint) {
      value = Varint();
    } else if (form == kDelimited) {
      bytes = Bytes(Varint());
    } else if (form == kFixed64 || form == kFixed32) {
      value = Fixed(form == kFixed64 ? 8 : 4);
    } else {
      ok_ = false;
    }
    ok_ &= number > 0 && key >> 32 == 0;
    return ok_;
  }
  uint64_t Varint() {
    uint64_t read = 0;
    const size_t most = std::min<size_t>(rest_.size(), 10);
    for (size_t i = 0; i < most; ++i) {
      const auto byte = static_cast<uint8_t>(rest_[i]);
      read |= static_cast<uint64_t>(byte & 0x7f) << 7 * i;
      if (byte >= 0x80) continue;
      rest_.remove_prefix(i + 1);
      return read;
    }
    ok_ = false;
    return 0;
  }
  uint64_t Fixed(size_t size) {
    uint64_t read = 0;
    const absl::string_view from = Bytes(size);
    std::memcpy(&read, from.data(), from.size());
    return read;
  }

  template <class T>
  absl::Status Fields(T& into) {
    ForEachNumber<T>([&](int, const char*, auto member) { Clear(into.*member); });
    absl::Status status;
    while (status.ok() && Next()) {
      // New rows would be made of what an older client puts into rows that exist.
      if (std::is_same_v<T, PutRequest> && number < kReadsRange && std::ranges::count(kPutNumbers, number) == 0 &&
          !(number == kStepOfPut && static_cast<int64_t>(value) == kNoStep)) {
        return absl::InvalidArgumentError(
            absl::StrCat("field ", number, " of a put is for rows that exist: send a fill"));
      }
      if constexpr (std::is_same_v<T, message::Request>) {
        if (form == kDelimited && IsBodyOfRequest(number)) {
          into.verb = number;
          into.body = std::string(bytes);
        }
      }
      ForEachNumber<T>([&](int place, absl::string_view name, auto member) {
        auto& field = into.*member;
        if constexpr (std::is_same_v<decltype(field), message::ReplyBody&>) {
          if (number >= kNumberOfFirstBody) status = ReadBody(field);
        } else if constexpr (std::is_same_v<T, RegisterRequest> && std::is_same_v<decltype(field), ConsumerOptions&>) {
          ForEachNumber<ConsumerOptions>([&](int option_place, absl::string_view of_option, auto option) {
            if (number == place + option_place - 1) status = Read(of_option, field.*option);
          });
        } else if constexpr (std::is_same_v<decltype(field), ColumnType&>) {
          if (number >= place && number <= place + 2) status = ReadType(number - place, field);
        } else {
          if (number != place) return;
          if constexpr (OfGroups<std::remove_cvref_t<decltype(field)>>) {
            if (IsFixed(member)) {
              status = ReadFixed(field);
              return;
            }
          }
          status = Read(name, field);
        }
      });
    }
    if (status.ok() && !ok_) status = Unreadable();
    if constexpr (std::is_same_v<T, RowConsumerStatus>) {
      if (into.lease != kNoLease) return status;
      into.taken = absl::InfinitePast();
      into.expires = absl::InfiniteFuture();
    }
    return status;
  }

 private:
  absl::string_view Bytes(uint64_t size) {
    ok_ &= size <= rest_.size();
    const absl::string_view read = rest_.substr(0, ok_ ? size : 0);
    rest_.remove_prefix(read.size());
    return read;
  }

  template <class T>
  void Clear(T& field) {
    if constexpr (std::is_same_v<T, absl::Time>) {
      field = now_;
    } else if constexpr (std::is_same_v<T, ColumnType>) {
      field = {ColumnKind{}, DType{}, {}};
    } else if constexpr (HasFields<T>) {
      ForEachField([&](const char*, auto& each) { Clear(each); }, field);
    } else {
      field = {};
    }
  }

  absl::Status ReadFixed(GroupId& field) {
    if (form == kFixed64) field = value;
    return absl::OkStatus();
  }
  absl::Status ReadFixed(std::vector<GroupId>& values) {
    if (form == kFixed64) values.push_back(value);
    if (form != kDelimited) return absl::OkStatus();
    if (bytes.size() % sizeof(GroupId) != 0) return Unreadable();
    const size_t before = values.size();
    values.resize(before + bytes.size() / sizeof(GroupId));
    if (!bytes.empty()) std::memcpy(values.data() + before, bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  absl::Status ReadBody(message::ReplyBody& body) {
    if (form == kVarint && number == kCountOfReply) body = static_cast<int64_t>(value);
    if (form != kDelimited) return absl::OkStatus();
    switch (number) {
      case 10:
        return Read("names", body.emplace<message::Names>());
      case 11:
        return Read("put", body.emplace<message::PutResult>());
      case 12:
        return Read("taken", body.emplace<message::Taken>());
      case 13:
        return Read("rows", body.emplace<message::Rows>());
      case 14:
        return Read("expires", body.emplace<message::Remaining>());
      case 15:
        return Read("row_ids", body.emplace<message::RowIds>());
      case message::Encoded::kList:
      case message::Encoded::kStatus:
      case message::Encoded::kConsumerStatus:
      case message::Encoded::kText:
      case message::Encoded::kRowStatus:
        body = message::Encoded{static_cast<message::Encoded::Number>(number), std::string(bytes)};
    }
    return absl::OkStatus();
  }

  // A field that is sent in another form is unknown.
  template <IsNumber T>
  absl::Status Read(absl::string_view name, T& field) {
    if (form != kVarint) return absl::OkStatus();
    if constexpr (std::is_enum_v<T>) {
      return ReadEnum(name, NamesOf(field).size(), field);
    } else {
      field = FromVarint<T>(value);
      return absl::OkStatus();
    }
  }
  template <class Enum>
  absl::Status ReadEnum(absl::string_view name, size_t count, Enum& field) {
    const auto sent = static_cast<uint32_t>(value);
    field = static_cast<Enum>(sent);
    if (sent < count) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("there is no ", name, " ", sent, "; there are 0 to ", count - 1));
  }
  absl::Status ReadType(int place, ColumnType& type) {
    if (place == 2) {
      if (type.row_shape.too_long()) return absl::OkStatus();
      std::vector<int64_t> shape(type.row_shape.begin(), type.row_shape.end());
      const absl::Status status = Read("row_shape", shape);
      type.row_shape = Shape(std::span<const int64_t>(shape));
      return status;
    }
    if (form != kVarint) return absl::OkStatus();
    if (place == 0) return ReadEnum("kind of column", static_cast<size_t>(ColumnKind::kBytes) + 1, type.kind);
    return ReadEnum("element type", static_cast<size_t>(DType::kF8E5M2) + 1, type.dtype);
  }
  template <class T>
  static T FromVarint(uint64_t sent) {
    if constexpr (std::is_same_v<T, absl::Duration>) {
      return DurationFromWire(static_cast<int64_t>(sent));
    } else {
      return static_cast<T>(sent);
    }
  }

  absl::Status Read(absl::string_view, std::string& text) {
    if (form == kDelimited) text = std::string(bytes);
    return absl::OkStatus();
  }
  absl::Status Read(absl::string_view name, absl::Time& time) {
    absl::Duration left;
    TDOCK_RETURN_IF_ERROR(Read(name, left));
    if (form == kVarint) time = name == "taken" ? now_ - left : now_ + left;
    return absl::OkStatus();
  }
  absl::Status Read(absl::string_view, std::optional<RowId>& row) {
    if (form == kVarint) row = value;
    return absl::OkStatus();
  }
  // The batch follows the message.
  absl::Status Read(absl::string_view, Batch&) { return absl::OkStatus(); }
  absl::Status Read(absl::string_view, std::stop_token&) { return absl::OkStatus(); }
  absl::Status Read(absl::string_view, Tags& tags) {
    if (form != kDelimited) return absl::OkStatus();
    TDOCK_ASSIGN_OR_RETURN(tags, DecodeTags(bytes));
    return absl::OkStatus();
  }
  absl::Status Read(absl::string_view name, ColumnStatus& column) {
    SentColumnStatus sent;
    TDOCK_RETURN_IF_ERROR(Read(name, sent));
    column = {std::move(sent.spec.name), sent.typed, sent.spec.type, sent.ready_cells};
    return absl::OkStatus();
  }
  template <HasFields T>
  absl::Status Read(absl::string_view, T& nested) {
    return form == kDelimited ? FieldReceiver(now_, bytes).Fields(nested) : absl::OkStatus();
  }
  template <class T>
  absl::Status Read(absl::string_view name, std::vector<T>& values) {
    if constexpr (!IsNumber<T>) {
      return form == kDelimited ? Read(name, values.emplace_back()) : absl::OkStatus();
    } else {
      if (form == kVarint) values.push_back(FromVarint<T>(value));
      if (form != kDelimited) return absl::OkStatus();
      FieldReceiver sub(now_, bytes);
      const size_t before = values.size();
      values.resize(before + CountVarints(bytes));
      for (size_t i = before; i < values.size(); ++i) values[i] = FromVarint<T>(sub.Varint());
      return sub.ok() && sub.done() ? absl::OkStatus() : Unreadable();
    }
  }

  const absl::Time now_;
  absl::string_view rest_;
  bool ok_ = true;
};

}  // namespace

template <HasFields T>
std::string Encode(const T& value, absl::Time now, size_t room) {
  return Sent(now, room, [&](auto sender) { sender.Fields(value); });
}

template <HasFields T>
size_t ByteSize(const T& value, absl::Time now) {
  ByteCounter counter;
  FieldSender(now, counter).Fields(value);
  return counter.count();
}

template <HasFields T>
absl::StatusOr<T> Decode(absl::string_view message, absl::Time now) {
  T value;
  TDOCK_RETURN_IF_ERROR(FieldReceiver(now, message).Fields(value));
  return value;
}

std::string EncodeTags(const Tags& tags) {
  return Sent(absl::UnixEpoch(), 0, [&](auto sender) { sender.SetOfTags(tags); });
}

absl::StatusOr<Tags> DecodeTags(absl::string_view message) {
  TDOCK_ASSIGN_OR_RETURN(SentTags sent, Decode<SentTags>(message));
  if (sent.names.size() != sent.values.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(sent.names.size(), " names of tags, but ", sent.values.size(), " values"));
  }
  Tags tags;
  for (size_t i = 0; i < sent.names.size(); ++i) {
    tags.insert_or_assign(std::move(sent.names[i]), std::move(sent.values[i]));
  }
  return tags;
}

absl::string_view FirstText(absl::string_view message) {
  absl::string_view text;
  FieldReceiver fields(absl::UnixEpoch(), message);
  while (fields.Next()) {
    if (fields.number == 1 && fields.form == kDelimited) text = fields.bytes;
  }
  return text;
}

uint64_t NumberIn(absl::string_view message, int field) {
  uint64_t number = 0;
  FieldReceiver fields(absl::UnixEpoch(), message);
  while (fields.Next()) {
    if (fields.number == field && fields.form == kVarint) number = fields.value;
  }
  return number;
}

int64_t CountIn(absl::string_view message, int field, bool packed) {
  int64_t count = 0;
  FieldReceiver fields(absl::UnixEpoch(), message);
  while (fields.Next()) {
    if (fields.number != field) continue;
    count += packed && fields.form == kDelimited ? static_cast<int64_t>(CountVarints(fields.bytes)) : 1;
  }
  return count;
}

void AppendNumber(std::string& message, int field, uint64_t number) {
  message += Sent(absl::UnixEpoch(), 0, [&](auto sender) {
    sender.Key(field, kVarint);
    sender.Varint(number);
  });
}

#define TDOCK_MESSAGE(T)                                                    \
  template std::string Encode(const T& value, absl::Time now, size_t room); \
  template size_t ByteSize(const T& value, absl::Time now);                 \
  template absl::StatusOr<T> Decode(absl::string_view message, absl::Time now);
TDOCK_FOR_EACH(TDOCK_MESSAGE, ColumnSpec, PartitionOptions, PartitionRequest, RegisterRequest, ConsumerRequest,
               PutRequest, FillRequest, TakeRequest, FetchRequest, LeaseRequest, RequeueRequest, StepRequest,
               PublishRequest, FindRequest, ImportRequest, ListRequest, ClearRequest, RowRequest, ListResult,
               PartitionStatus, ConsumerStatus, RowStatus, message::Hello, message::Welcome, message::Request,
               message::Cancel, message::Release, message::Reply, message::Rows)
#undef TDOCK_MESSAGE

}  // namespace tdock::service
