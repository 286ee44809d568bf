// Conversions of single message fields.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tdock.pb.h"
#include "tdock/rows.h"

namespace tdock::service {

// Nanoseconds on the wire: the largest int64 means never, the smallest the infinite past.
int64_t ToWire(absl::Duration duration);
absl::Duration DurationFromWire(int64_t nanoseconds);

template <class Repeated>
std::vector<std::string> Strings(const Repeated& values) {
  return {values.begin(), values.end()};
}

template <class Range, class Repeated>
void Append(const Range& values, Repeated* repeated) {
  repeated->Add(values.begin(), values.end());
}
inline void Append(const std::vector<std::string>& values, google::protobuf::RepeatedPtrField<std::string>* repeated) {
  for (const std::string& value : values) *repeated->Add() = value;
}

template <class T, class Repeated>
std::vector<T> Numbers(const Repeated& values) {
  return {values.begin(), values.end()};
}

void Encode(const ColumnSpec& spec, v1::ColumnSpec* message);
// InvalidArgument for an unknown kind or element type.
absl::StatusOr<ColumnSpec> Decode(const v1::ColumnSpec& message);

void Encode(const Tags& tags, v1::Tags* message);
// InvalidArgument for names without values.
absl::StatusOr<Tags> Decode(const v1::Tags& message);

// A number that is a value of an enum, 0 to `last`. InvalidArgument otherwise, naming the field.
template <class Enum>
absl::StatusOr<Enum> DecodeEnum(absl::string_view what, uint32_t value, Enum last);

absl::Status CheckEnum(absl::string_view what, uint32_t value, uint32_t last);

template <class Enum>
absl::StatusOr<Enum> DecodeEnum(absl::string_view what, uint32_t value, Enum last) {
  if (absl::Status status = CheckEnum(what, value, static_cast<uint32_t>(last)); !status.ok()) return status;
  return static_cast<Enum>(value);
}

}  // namespace tdock::service
