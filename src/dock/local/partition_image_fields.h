// Shared by writing and reading the image of a partition: its head, and its fields, which it has by their names.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "dock/local/partition_image.h"
#include "tdock/frame.h"
#include "tdock/meta.h"

namespace tdock::dock {

// As that of a frame, with another letter.
inline constexpr absl::string_view kImageMagic("\x8aTDP\r\n\x1a\n", 8);
inline constexpr size_t kImageVersionAt = 8;
inline constexpr size_t kImageBytesAt = 16;
// Of the head, what its checksum, which follows, is over.
inline constexpr size_t kSummedHeadBytes = 24;
// The bytes of an image are there before it is read, so its frames may be as large as it is.
inline constexpr FrameLimits kImageFrameLimits{.max_header_bytes = size_t{1} << 32, .max_frame_bytes = size_t{1} << 50};

template <class T, class... Types>
concept IsOneOf = (std::same_as<std::remove_const_t<T>, Types> || ...);
// Lists that an image has in parts of their own.
template <class T>
concept IsInParts =
    IsOneOf<T, std::vector<ColumnSpec>, std::vector<TableImage::Column>, std::vector<TableImage::GroupState>,
            std::vector<TableImage::Row>, std::vector<TableImage::ConsumerState>, std::vector<TableImage::DoneRow>,
            std::vector<TableImage::Redelivery>, std::vector<PartitionImage::Cells>>;

// Visits the fields of a struct in an image, and those of the structs in it.
template <class Visit, HasFields T>
void VisitImage(Visit& visit, T& it) {
  const auto visit_one = [&](const char* name, auto& field) {
    using Field = std::remove_reference_t<decltype(field)>;
    if constexpr (IsOneOf<Field, ConsumerStatus>) {
      ForEachKeptCount(visit, field);
    } else if constexpr (HasFields<Field>) {
      VisitImage(visit, field);
    } else if constexpr (!IsInParts<Field>) {
      visit(name, field);
    }
  };
  ForEachField(visit_one, it);
}

// Writes fields into a map. Not thread-safe.
class FieldWriter {
 public:
  template <class T>
  void operator()(const char* name, const T& value) {
    meta_.emplace(name, ValueOf(value));
  }
  Meta Take() && { return std::move(meta_); }

 private:
  static MetaValue ValueOf(bool value) { return value; }
  static MetaValue ValueOf(const std::string& value) { return value; }
  // Unsigned numbers and enumerators as the signed number of the same bits.
  template <class T>
  static MetaValue ValueOf(const T& value) {
    return static_cast<int64_t>(value);
  }
  template <class T>
  static MetaValue ValueOf(const std::vector<T>& values) {
    MetaValue::List list;
    list.reserve(values.size());
    for (const T& value : values) list.push_back(ValueOf(value));
    return list;
  }
  // A quarter of a nanosecond is what a duration counts.
  static MetaValue ValueOf(absl::Duration value) {
    absl::Duration rest;
    const int64_t seconds = absl::IDivDuration(value, absl::Seconds(1), &rest);
    if (value == absl::InfiniteDuration()) return MetaValue::List{seconds};
    return MetaValue::List{seconds, absl::IDivDuration(rest, absl::Nanoseconds(1) / 4, &rest)};
  }

  Meta meta_;
};

// Reads them; the fields keep their values from the first that is missing, or not what it must be, on. Not thread-safe.
class FieldReader {
 public:
  // `meta` must outlive it.
  explicit FieldReader(const Meta& meta) : meta_(meta) {}

  template <class T>
  void operator()(const char* name, T& value) {
    if (!status_.ok()) return;
    const auto it = meta_.find(name);
    if (it == meta_.end() || !Read(it->second, value)) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("'", name, "' is ", it == meta_.end() ? "missing" : "not what it must be"));
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  template <class T>
  static bool ReadAs(const MetaValue& from, T& value) {
    const T* const read = from.As<T>();
    if (read != nullptr) value = *read;
    return read != nullptr;
  }
  static bool Read(const MetaValue& from, bool& value) { return ReadAs(from, value); }
  static bool Read(const MetaValue& from, std::string& value) { return ReadAs(from, value); }
  static bool Read(const MetaValue& from, int64_t& value) { return ReadAs(from, value); }
  static bool Read(const MetaValue& from, uint64_t& value) {
    int64_t bits = 0;
    if (!ReadAs(from, bits)) return false;
    value = static_cast<uint64_t>(bits);
    return true;
  }
  static bool Read(const MetaValue& from, int32_t& value) {
    int64_t wide = 0;
    if (!ReadAs(from, wide) || wide != static_cast<int32_t>(wide)) return false;
    value = static_cast<int32_t>(wide);
    return true;
  }
  template <class T>
    requires std::is_enum_v<T>
  static bool Read(const MetaValue& from, T& value) {
    int64_t wide = 0;
    if (!ReadAs(from, wide) || wide < 0 || wide >= static_cast<int64_t>(NamesOf(value).size())) return false;
    value = static_cast<T>(wide);
    return true;
  }
  template <class T>
  static bool Read(const MetaValue& from, std::vector<T>& values) {
    const auto* const list = from.As<MetaValue::List>();
    if (list == nullptr) return false;
    values.resize(list->size());
    for (size_t i = 0; i < values.size(); ++i) {
      if (!Read((*list)[i], values[i])) return false;
    }
    return true;
  }
  static bool Read(const MetaValue& from, absl::Duration& value) {
    std::vector<int64_t> parts;
    if (!Read(from, parts) || parts.empty() || parts.size() > 2) return false;
    value =
        parts.size() == 1 ? absl::InfiniteDuration() : absl::Seconds(parts[0]) + parts[1] * (absl::Nanoseconds(1) / 4);
    return true;
  }

  const Meta& meta_;
  absl::Status status_;
};

}  // namespace tdock::dock
