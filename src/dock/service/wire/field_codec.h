// Structs as messages of the protocol, and back, in the format of protocol buffers: fields are numbered in the order of
// their struct's list, from 1 on, but for those of a put and where a struct has kNumbers (docs/wire-format.md). Numbers
// that are 0, empty texts and empty lists are not sent; fields that were not sent are 0 or empty, whatever the struct's
// defaults. Times are sent as what is left of them, or how long ago they were, at `now` of each side's clock. Unknown
// fields are skipped.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tdock/fields.h"
#include "tdock/requests.h"

namespace tdock::service {

// The structs of requests.h, options.h and messages.h: see the end of field_codec.cc. `room`: zeros before the message.
template <HasFields T>
std::string Encode(const T& value, absl::Time now = absl::UnixEpoch(), size_t room = 0);
// The size of what is encoded.
template <HasFields T>
size_t ByteSize(const T& value, absl::Time now = absl::UnixEpoch());
// InvalidArgument for what cannot be such a message; the dock decides whether a request is valid.
template <HasFields T>
absl::StatusOr<T> Decode(absl::string_view message, absl::Time now = absl::UnixEpoch());

// A set of tags by itself.
std::string EncodeTags(const Tags& tags);
absl::StatusOr<Tags> DecodeTags(absl::string_view message);

// The fields of a put. The other numbers up to 17 are of a put into rows that exist, which is now a fill, and refused.
// kStepOfPut is always sent, as "no step".
inline constexpr int kPutNumbers[] = {1, 3, 4, 9, 10, 11, 12, 16, 17, 0};
static_assert(std::size(kPutNumbers) == CountFields<PutRequest>());
inline constexpr int kStepOfPut = 8;

// Calls visit(number, name, member) for each field of a message.
template <HasFields T, class Visit>
void ForEachNumber(const Visit& visit) {
  size_t place = 0;
  T::VisitFields([&](const char* name, auto member) {
    if constexpr (std::is_same_v<T, PutRequest>) {
      visit(kPutNumbers[place], name, member);
    } else if constexpr (requires { T::kNumbers; }) {
      static_assert(std::size(T::kNumbers) == CountFields<T>());
      visit(T::kNumbers[place], name, member);
    } else {
      visit(static_cast<int>(place + 1), name, member);
    }
    ++place;
  });
}

template <class T, class Field>
int NumberOf(Field T::*field) {
  int found = 0;
  ForEachNumber<T>([&](int number, const char*, auto member) {
    if constexpr (std::is_same_v<decltype(member), Field T::*>) {
      if (member == field) found = number;
    }
  });
  return found;
}

// Not a field of PutRequest: the client understands PutResult.first and count.
inline constexpr int kReadsRange = 18;

// Looks into a message, which may be invalid. The first field, if it is a text: in requests, the partition.
absl::string_view FirstText(absl::string_view message);
// The last number of this field; 0 if there is none.
uint64_t NumberIn(absl::string_view message, int field);
// How many values the message has for a list.
int64_t CountIn(absl::string_view message, int field, bool packed);
template <class T, class Value>
int64_t CountIn(absl::string_view message, std::vector<Value> T::*list) {
  return CountIn(message, NumberOf(list), std::is_integral_v<Value>);
}
// Adds a number, which replaces earlier ones of the field.
void AppendNumber(std::string& message, int field, uint64_t number);

}  // namespace tdock::service
