#include "tdock/meta.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock {
namespace {

// The beginning of it, if it is long.
std::string ForMessage(const MetaValue& value) {
  constexpr size_t kMaxBytes = 80;
  std::string text = ToString(value);
  if (text.size() <= kMaxBytes) return text;
  size_t end = kMaxBytes;
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;  // not within a character
  return text.substr(0, end) + "…";
}

std::string Joined(absl::string_view path, absl::string_view key) {
  return path.empty() ? std::string(key) : absl::StrCat(path, ".", key);
}

// Adds what one batch says to what those before it said; `path` is for the message.
absl::Status AppendMetrics(MetaValue::List& into, const MetaValue& value, absl::string_view path) {
  if (value.As<Meta>() != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("metric '", EscapeForMessage(path), "' is a map in one batch and none in another"));
  }
  if (const auto* list = value.As<MetaValue::List>(); list != nullptr) {
    into.insert(into.end(), list->begin(), list->end());
  } else {
    into.push_back(value);
  }
  return absl::OkStatus();
}

absl::Status AppendMetrics(Meta& into, absl::string_view key, const MetaValue& value, absl::string_view path) {
  const Meta* const map = value.As<Meta>();
  auto [entry, first] = into.try_emplace(std::string(key), map != nullptr ? MetaValue(Meta()) : MetaValue::List());
  const std::string here = Joined(path, key);
  if (auto* list = entry->second.As<MetaValue::List>(); list != nullptr) return AppendMetrics(*list, value, here);
  if (map == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("metric '", EscapeForMessage(here), "' is a map in one batch and none in another"));
  }
  for (const auto& [name, metric] : *map) {
    TDOCK_RETURN_IF_ERROR(AppendMetrics(*entry->second.As<Meta>(), name, metric, here));
  }
  return absl::OkStatus();
}

absl::Status DiffersIn(absl::string_view key, const MetaValue& a, const MetaValue& b) {
  return absl::InvalidArgumentError(absl::StrCat("meta '", EscapeForMessage(key), "' is ", ForMessage(a),
                                                 " in one batch and ", ForMessage(b), " in another"));
}

absl::Status CheckSame(const Meta& a, const Meta& b, const std::vector<std::string>& metrics) {
  for (const auto& [key, value] : a) {
    if (std::find(metrics.begin(), metrics.end(), key) != metrics.end()) continue;
    const auto other = b.find(key);
    if (other == b.end()) {
      return absl::InvalidArgumentError(absl::StrCat("meta '", EscapeForMessage(key), "' is ", ForMessage(value),
                                                     " in one batch and not in another"));
    }
    if (!(other->second == value)) return DiffersIn(key, value, other->second);
  }
  return absl::OkStatus();
}

struct Printer {
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return absl::StrCat(value); }
  // Always other than an integer.
  std::string operator()(double value) const {
    std::string text = absl::StrCat(value);
    return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
  }
  std::string operator()(const std::string& value) const { return Quoted(value); }
  std::string operator()(const MetaValue::List& list) const {
    const auto append = [](std::string* out, const MetaValue& value) { out->append(ToString(value)); };
    return absl::StrCat("[", absl::StrJoin(list, ", ", append), "]");
  }
  std::string operator()(const Meta& map) const {
    const auto append = [](std::string* out, const auto& entry) {
      absl::StrAppend(out, Quoted(entry.first), ": ", ToString(entry.second));
    };
    return absl::StrCat("{", absl::StrJoin(map, ", ", append), "}");
  }
};

}  // namespace

bool operator==(const MetaValue& a, const MetaValue& b) {
  const double *x = a.As<double>(), *y = b.As<double>();
  if (x != nullptr && y != nullptr) return std::bit_cast<uint64_t>(*x) == std::bit_cast<uint64_t>(*y);
  return a.value_ == b.value_;
}

std::string ToString(const MetaValue& value) {
  const Printer print;
  if (const auto* truth = value.As<bool>()) return print(*truth);
  if (const auto* integer = value.As<int64_t>()) return print(*integer);
  if (const auto* number = value.As<double>()) return print(*number);
  if (const auto* text = value.As<std::string>()) return print(*text);
  if (const auto* list = value.As<MetaValue::List>()) return print(*list);
  return print(*value.As<Meta>());
}

absl::StatusOr<Meta> UniteMeta(const Meta& a, const Meta& b) {
  Meta united = a;
  for (const auto& [key, value] : b) {
    const auto [entry, added] = united.try_emplace(key, value);
    if (!added && !(entry->second == value)) return DiffersIn(key, entry->second, value);
  }
  return united;
}

absl::StatusOr<Meta> ConcatMeta(std::span<const Meta* const> metas, const std::vector<std::string>& metrics) {
  Meta result;
  if (metas.empty()) return result;
  for (const Meta* meta : metas.subspan(1)) {
    TDOCK_RETURN_IF_ERROR(CheckSame(*metas.front(), *meta, metrics));
    TDOCK_RETURN_IF_ERROR(CheckSame(*meta, *metas.front(), metrics));
  }
  result = *metas.front();
  for (const std::string& key : metrics) {
    result.erase(key);
    for (const Meta* meta : metas) {
      const auto entry = meta->find(key);
      if (entry != meta->end()) TDOCK_RETURN_IF_ERROR(AppendMetrics(result, key, entry->second, ""));
    }
  }
  return result;
}

}  // namespace tdock
