#include "inference/chat_page.h"

#include <cstdint>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace tdock::inference {
namespace {

// What nobody can guess, each time another.
std::string Nonce() {
  std::random_device device;
  std::string nonce;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&nonce, absl::Hex(uint32_t{device()}, absl::kZeroPad8));
  return nonce;
}

}  // namespace

http::Response ChatPage() {
  const std::string nonce = Nonce();
  return {
      .body = absl::StrReplaceAll(kChatPage, {{"{{nonce}}", nonce}}),
      .content_type = "text/html; charset=utf-8",
      .headers = {{"Content-Security-Policy",
                   absl::StrCat("default-src 'none'; script-src 'nonce-", nonce, "'; style-src 'nonce-", nonce,
                                "'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                                "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'")},
                  {"X-Content-Type-Options", "nosniff"},
                  {"Referrer-Policy", "no-referrer"},
                  {"Cross-Origin-Opener-Policy", "same-origin"},
                  {"Cache-Control", "no-store"}}};
}

}  // namespace tdock::inference
