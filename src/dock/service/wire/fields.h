// Conversions of single message fields.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tdock.pb.h"

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

// The error of a call. A code that absl does not know becomes Unknown.
void Encode(const absl::Status& status, v1::Reply* reply);
absl::Status StatusOf(const v1::Reply& reply);

}  // namespace tdock::service
