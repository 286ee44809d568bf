#include "trainer/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/tensor/checksum.h"

namespace tdock::trainer {
namespace {

constexpr char kManifest[] = "manifest.json";
constexpr char kFormat[] = "transfer-dock checkpoint";
constexpr int64_t kVersion = 2, kFirstWithChecksum = 2;
constexpr char kOwnChecksum[] = "manifest_xxh3";
constexpr size_t kDigits = 16;
constexpr uint64_t kMaxManifestBytes = uint64_t{4} << 20;
constexpr char kStep[] = "step-";
constexpr char kReplaced[] = "-replaced";

std::string NameOf(const CheckpointPlace& place) {
  const std::string name = absl::StrFormat("%s%06d", kStep, place.step);
  return place.part == 0 ? name : absl::StrFormat("%s-%02d", name, place.part);
}

std::optional<int64_t> Digits(absl::string_view text) {
  int64_t value = 0;
  const bool digits = std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || !absl::SimpleAtoi(text, &value)) return std::nullopt;
  return value;
}

std::optional<CheckpointPlace> PlaceOf(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, kStep)) return std::nullopt;
  const std::vector<absl::string_view> numbers = absl::StrSplit(name, '-');
  if (numbers.size() > 2) return std::nullopt;
  const std::optional<int64_t> step = Digits(numbers[0]), part = numbers.size() > 1 ? Digits(numbers[1]) : 0;
  if (!step || !part) return std::nullopt;
  const CheckpointPlace place{*step, *part};
  // A name that we do not write is somebody else's.
  return absl::StrCat(kStep, name) == NameOf(place) ? std::optional(place) : std::nullopt;
}

// Inside the folder, and nothing that means another place.
bool IsPathInside(absl::string_view path) {
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  return std::none_of(parts.begin(), parts.end(),
                      [](absl::string_view part) { return part.empty() || part == "." || part == ".."; });
}

// All files below `folder`/`prefix`, by their paths from `folder` on.
absl::Status MeasureAll(Env& env, const std::string& folder, const std::string& prefix,
                        std::map<std::string, Manifest::File>& files) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.List(JoinPath(folder, prefix)));
  for (const std::string& name : names) {
    if (name.starts_with('.')) continue;  // the system's, such as .nfs000001
    const std::string path = prefix.empty() ? name : JoinPath(prefix, name);
    absl::StatusOr<Manifest::File> file = MeasureFile(env, JoinPath(folder, path));
    if (absl::IsInvalidArgument(file.status())) {  // a folder
      TDOCK_RETURN_IF_ERROR(MeasureAll(env, folder, path, files));
      continue;
    }
    TDOCK_RETURN_IF_ERROR(file.status());
    files.emplace(path, *file);
  }
  return absl::OkStatus();
}

// True for the kinds of files that reading a checkpoint, or the model in it, opens. Others may be put beside them, such
// as a model in the format of another program.
bool CouldBeRead(absl::string_view name) {
  constexpr absl::string_view kKinds[] = {".safetensors", ".json", ".bin", ".jinja", ".model", ".txt"};
  return std::any_of(std::begin(kKinds), std::end(kKinds),
                     [&](absl::string_view kind) { return absl::EndsWith(name, kind); });
}

// DataLoss for a file below `folder`/`prefix` that is not among `listed`, and could be read as a part of a checkpoint.
absl::Status CheckNothingElse(Env& env, const std::string& folder, const std::string& prefix,
                              const std::map<std::string, Manifest::File>& listed) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.List(JoinPath(folder, prefix)));
  for (const std::string& name : names) {
    const std::string path = prefix.empty() ? name : JoinPath(prefix, name);
    if (path == kManifest || name.starts_with('.') || listed.contains(path)) continue;
    if (absl::IsInvalidArgument(env.OpenForReading(JoinPath(folder, path)).status())) {  // a folder
      TDOCK_RETURN_IF_ERROR(CheckNothingElse(env, folder, path, listed));
      continue;
    }
    if (!CouldBeRead(name)) continue;
    return absl::DataLossError(absl::StrCat(
        "checkpoint ", EscapeUnprintable(folder), ": manifest.json does not list ", EscapeForMessage(path),
        ", so that nothing says what it must hold; if it is no part of the checkpoint, move it elsewhere"));
  }
  return absl::OkStatus();
}

std::string HexOf(absl::string_view bytes) {
  return absl::StrFormat("%016x", Checksum(std::as_bytes(std::span(bytes.data(), bytes.size()))));
}

// Where the digits of its own checksum begin in the text of a manifest; npos if it has none.
size_t OwnDigits(absl::string_view text, absl::string_view digits) {
  const size_t name = text.find(absl::StrCat("\"", kOwnChecksum, "\""));
  return name == absl::string_view::npos || digits.size() != kDigits ? absl::string_view::npos
                                                                     : text.find(digits, name);
}

absl::Status Malformed(absl::string_view what) { return absl::InvalidArgumentError(absl::StrCat("its ", what)); }

absl::StatusOr<std::map<std::string, Manifest::File>> ParseFiles(const nlohmann::json& json) {
  std::map<std::string, Manifest::File> files;
  for (const auto& [path, file] : json.items()) {
    if (!IsPathInside(path)) {
      return Malformed(absl::StrCat("file '", EscapeForMessage(path), "' would be outside the folder"));
    }
    if (!file.is_object() || !file.contains("bytes") || !file["bytes"].is_number_unsigned() || !file.contains("xxh3") ||
        !file["xxh3"].is_string()) {
      return Malformed(absl::StrCat("file '", EscapeForMessage(path), "' lacks bytes or xxh3"));
    }
    uint64_t checksum = 0;
    if (!absl::SimpleHexAtoi(file["xxh3"].get<std::string>(), &checksum)) {
      return Malformed(absl::StrCat("file '", EscapeForMessage(path), "' has an xxh3 that is not hexadecimal"));
    }
    files[path] = {file["bytes"].get<uint64_t>(), checksum};
  }
  return files;
}

// Checks the manifest's own checksum. InvalidArgument if it is wrong or missing.
absl::StatusOr<bool> CheckOwnChecksum(std::string text, const nlohmann::json& json, int64_t version) {
  const auto given = json.find(kOwnChecksum);
  if (given == json.end() && version < kFirstWithChecksum) return false;
  const std::string digits = given != json.end() && given->is_string() ? given->get<std::string>() : "";
  const size_t at = OwnDigits(text, digits);
  if (at == std::string::npos) {
    return Malformed(absl::StrCat("\"", kOwnChecksum, "\" is missing, or no ", kDigits, " hexadecimal digits"));
  }
  text.replace(at, kDigits, kDigits, '0');
  if (HexOf(text) == digits) return true;
  return Malformed(absl::StrCat("content has changed: \"", kOwnChecksum, "\" is ", EscapeForMessage(digits),
                                ", and would be ", HexOf(text)));
}

}  // namespace

absl::StatusOr<Manifest::File> MeasureFile(Env& env, const std::string& path) {
  TDOCK_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, env.OpenForReading(path));
  RunningChecksum checksum;
  std::vector<char> piece(size_t{1} << 20);
  for (uint64_t at = 0; at < file->size(); at += piece.size()) {
    const auto part = std::span(piece).first(static_cast<size_t>(std::min<uint64_t>(piece.size(), file->size() - at)));
    TDOCK_RETURN_IF_ERROR(file->ReadAt(at, part));
    checksum.Add(std::as_bytes(part));
  }
  return Manifest::File{file->size(), checksum.Value()};
}

std::string ToText(const CheckpointPlace& place) {
  if (place.part == 0) return absl::StrCat("step ", place.step);
  return absl::StrCat("step ", place.step, " and a part of the next");
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text) {
  TDOCK_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJsonObject(text, /*max_depth=*/3));
  if (json.value("format", nlohmann::json()) != kFormat) {
    return Malformed(absl::StrCat("\"format\" is not \"", kFormat, "\": something else wrote it"));
  }
  const auto integer = [&](const char* name) {
    const nlohmann::json value = json.value(name, nlohmann::json());
    return value.is_number_integer() ? value.get<int64_t>() : -1;
  };
  if (integer("version") > kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("it has version ", integer("version"),
                                                      " of the format; this program reads versions up to ", kVersion));
  }
  TDOCK_ASSIGN_OR_RETURN(const bool has_checksum, CheckOwnChecksum(std::string(text), json, integer("version")));
  Manifest manifest{.has_checksum = has_checksum,
                    .place = {integer("step"), integer("part")},
                    .saved = {},
                    .metrics = {},
                    .files = {}};
  if (integer("version") < 1 || manifest.place.step < 0 || manifest.place.part < 0) {
    return Malformed("\"version\", \"step\" or \"part\" is not a number");
  }
  const nlohmann::json saved = json.value("saved", nlohmann::json());
  if (!saved.is_string() || !absl::ParseTime(absl::RFC3339_full, saved.get<std::string>(), &manifest.saved, nullptr)) {
    return Malformed("\"saved\" is not a time");
  }
  const nlohmann::json metrics = json.value("metrics", nlohmann::json());
  if (!metrics.is_object()) return Malformed("\"metrics\" is not an object");
  for (const auto& [name, value] : metrics.items()) {
    if (!value.is_number()) return Malformed(absl::StrCat("metric '", EscapeForMessage(name), "' is not a number"));
    manifest.metrics[name] = value.get<double>();
  }
  const nlohmann::json files = json.value("files", nlohmann::json());
  if (!files.is_object()) return Malformed("\"files\" is not an object");
  TDOCK_ASSIGN_OR_RETURN(manifest.files, ParseFiles(files));
  return manifest;
}

std::string ManifestJson(const Manifest& manifest) {
  nlohmann::ordered_json metrics = nlohmann::ordered_json::object(), files = metrics;
  for (const auto& [name, value] : manifest.metrics) {
    if (std::isfinite(value)) metrics[name] = value;
  }
  for (const auto& [path, file] : manifest.files) {
    files[path] = {{"bytes", file.bytes}, {"xxh3", absl::StrFormat("%016x", file.checksum)}};
  }
  const nlohmann::ordered_json json = {
      {"format", kFormat},
      {"version", kVersion},
      {kOwnChecksum, std::string(kDigits, '0')},
      {"step", manifest.place.step},
      {"part", manifest.place.part},
      {"saved", absl::FormatTime(absl::RFC3339_sec, manifest.saved, absl::UTCTimeZone())},
      {"metrics", metrics},
      {"files", files}};
  std::string text = JsonText(json, 1) + "\n";
  text.replace(OwnDigits(text, std::string(kDigits, '0')), kDigits, HexOf(text));
  return text;
}

absl::StatusOr<Manifest> ReadManifest(Env& env, const std::string& folder) {
  const std::string path = JoinPath(folder, kManifest);
  TDOCK_ASSIGN_OR_RETURN(const std::string text, ReadFileUpTo(env, path, kMaxManifestBytes));
  absl::StatusOr<Manifest> manifest = ParseManifest(text);
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  return manifest;
}

absl::StatusOr<Manifest> VerifyCheckpoint(Env& env, const std::string& folder) {
  absl::StatusOr<Manifest> read = ReadManifest(env, folder);
  if (absl::IsInvalidArgument(read.status())) return absl::DataLossError(read.status().message());
  TDOCK_ASSIGN_OR_RETURN(Manifest manifest, std::move(read));
  TDOCK_RETURN_IF_ERROR(CheckNothingElse(env, folder, "", manifest.files));
  const std::string shown = EscapeUnprintable(folder);
  for (const auto& [name, expected] : manifest.files) {
    const absl::StatusOr<Manifest::File> found = MeasureFile(env, JoinPath(folder, name));
    if (!found.ok()) return absl::DataLossError(absl::StrCat("checkpoint ", shown, ": ", found.status().message()));
    if (found->bytes != expected.bytes) {
      return absl::DataLossError(absl::StrCat("checkpoint ", shown, ": ", EscapeForMessage(name), " has ", found->bytes,
                                              " bytes, but manifest.json says ", expected.bytes));
    }
    if (found->checksum != expected.checksum) {
      return absl::DataLossError(absl::StrCat("checkpoint ", shown, ": ", EscapeForMessage(name),
                                              " has changed: it has another checksum than manifest.json says"));
    }
  }
  return manifest;
}

absl::StatusOr<std::string> ManifestChecksum(Env& env, const std::string& folder) {
  TDOCK_ASSIGN_OR_RETURN(const Manifest::File file, MeasureFile(env, JoinPath(folder, kManifest)));
  return absl::StrFormat("%016x", file.checksum);
}

std::string CheckpointFolder::PathOf(const CheckpointPlace& place) const { return JoinPath(path_, NameOf(place)); }

absl::StatusOr<std::vector<CheckpointPlace>> CheckpointFolder::List() const {
  std::vector<CheckpointPlace> places;
  if (!env_.Exists(path_)) return places;
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, env_.List(path_));
  for (const std::string& name : names) {
    if (const std::optional<CheckpointPlace> place = PlaceOf(name)) places.push_back(*place);
  }
  std::sort(places.begin(), places.end());
  return places;
}

absl::Status CheckpointFolder::RemoveUnfinished() {
  if (!env_.Exists(path_)) return absl::OkStatus();
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, env_.List(path_));
  for (const std::string& name : names) {
    absl::string_view place = name;
    if (!absl::ConsumePrefix(&place, ".") || !absl::ConsumeSuffix(&place, kReplaced) || !PlaceOf(place)) continue;
    const std::string final = JoinPath(path_, place);
    if (!env_.Exists(final)) TDOCK_RETURN_IF_ERROR(env_.Rename(JoinPath(path_, name), final));
  }
  for (const std::string& name : names) {
    if (name.starts_with(absl::StrCat(".", kStep))) TDOCK_RETURN_IF_ERROR(env_.RemoveAll(JoinPath(path_, name)));
  }
  return absl::OkStatus();
}

absl::Status CheckpointFolder::Write(const Manifest& head,
                                     const std::function<absl::Status(const std::string& folder)>& write) {
  const std::string name = NameOf(head.place);
  const std::string aside = JoinPath(path_, "." + name), final = JoinPath(path_, name);
  const std::string replaced = JoinPath(path_, absl::StrCat(".", name, kReplaced));
  const absl::Status status = [&]() -> absl::Status {
    TDOCK_RETURN_IF_ERROR(env_.RemoveAll(aside));
    TDOCK_RETURN_IF_ERROR(env_.CreateFolders(aside));
    TDOCK_RETURN_IF_ERROR(write(aside));
    Manifest manifest = head;
    manifest.files.clear();
    TDOCK_RETURN_IF_ERROR(MeasureAll(env_, aside, "", manifest.files));
    TDOCK_RETURN_IF_ERROR(WriteFileAtomically(env_, JoinPath(aside, kManifest), ManifestJson(manifest)));
    if (!env_.Exists(final)) return env_.Rename(aside, final);
    // A folder cannot replace one that is not empty; the old one is there until the new one is.
    TDOCK_RETURN_IF_ERROR(env_.RemoveAll(replaced));
    TDOCK_RETURN_IF_ERROR(env_.Rename(final, replaced));
    if (absl::Status renamed = env_.Rename(aside, final); !renamed.ok()) {
      env_.Rename(replaced, final).IgnoreError();  // RemoveUnfinished() does it, if this fails
      return renamed;
    }
    env_.RemoveAll(replaced).IgnoreError();  // RemoveUnfinished() does it, if this fails
    return absl::OkStatus();
  }();
  if (!status.ok()) env_.RemoveAll(aside).IgnoreError();  // the next one removes it, if this fails
  return status;
}

absl::Status CheckpointFolder::Remove(const CheckpointPlace& place) {
  const std::string path = PathOf(place);
  if (!env_.Exists(path)) return absl::OkStatus();
  // Out of sight first: half a checkpoint must not be found.
  const std::string aside = JoinPath(path_, absl::StrCat(".", NameOf(place), "-removed"));
  TDOCK_RETURN_IF_ERROR(env_.RemoveAll(aside));
  TDOCK_RETURN_IF_ERROR(env_.Rename(path, aside));
  return env_.RemoveAll(aside);
}

}  // namespace tdock::trainer
