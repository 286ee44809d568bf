// Boost.Beast's parser of requests, without what it lets through. Internal to this module.
#pragma once

#include <algorithm>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "core/http/framing.h"

namespace tdock::http {

// Beside what Beast refuses, these are errors: a header of several lines (obs-fold), headers and trailers that together
// exceed the limit although they come one by one, and extensions of chunks with control characters, or of more than
// kMaxExtensionBytes in all. Trailers are dropped: the head has been judged when they come. CheckFraming() has the
// rest.
class RequestParser final : public boost::beast::http::request_parser<boost::beast::http::string_body> {
 public:
  static constexpr size_t kMaxExtensionBytes = 4096;  // of the chunks of a request

  RequestParser(size_t max_head_bytes, uint64_t max_body_bytes) : max_head_bytes_(max_head_bytes) {
    header_limit(static_cast<uint32_t>(max_head_bytes));
    body_limit(max_body_bytes);
  }

  // Once is_header_done().
  RequestHead head() const {
    const auto view = [](boost::beast::string_view text) { return absl::string_view(text.data(), text.size()); };
    RequestHead head{.method = std::string(view(get().method_string())),
                     .target = std::string(view(get().target())),
                     .version = static_cast<int>(get().version())};
    for (const auto& field : get()) {
      head.headers.emplace_back(absl::AsciiStrToLower(view(field.name_string())), std::string(view(field.value())));
    }
    return head;
  }

 private:
  using Text = boost::beast::string_view;
  using ErrorCode = boost::beast::error_code;
  using Problem = boost::beast::http::error;

  // Beast joins the lines of a folded value in memory of its own. That of a value on one line follows its name.
  static bool IsFolded(Text name, Text value) {
    const char* const begin = name.data() + name.size();
    const auto distance = reinterpret_cast<uintptr_t>(value.data()) - reinterpret_cast<uintptr_t>(begin);
    constexpr uintptr_t kMaxDistance = 64 << 10;  // more than a head may have
    if (distance > kMaxDistance) return true;
    return std::any_of(begin, begin + distance, [](char c) { return c == '\r' || c == '\n'; });
  }

  void on_field_impl(boost::beast::http::field name, Text name_text, Text value, ErrorCode& error) override {
    head_bytes_ += name_text.size() + value.size();
    if (head_bytes_ > max_head_bytes_) {
      error = Problem::header_limit;
    } else if (IsFolded(name_text, value)) {
      error = Problem::bad_obs_fold;
    } else if (!is_header_done()) {
      get().insert(name, name_text, value);
    }
  }

  void on_chunk_header_impl(uint64_t /*size*/, Text extensions, ErrorCode& error) override {
    extension_bytes_ += extensions.size();
    const bool has_control =
        std::any_of(extensions.begin(), extensions.end(), [](char c) { return absl::ascii_iscntrl(c) && c != '\t'; });
    if (has_control || extension_bytes_ > kMaxExtensionBytes) error = Problem::bad_chunk_extension;
  }

  const size_t max_head_bytes_;
  size_t head_bytes_ = 0, extension_bytes_ = 0;
};

}  // namespace tdock::http
