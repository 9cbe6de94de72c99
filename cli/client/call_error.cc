#include "cli/client/call_error.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tandem::cli {
namespace {

// What a text of gRPC means to the user; "" for other texts.
absl::string_view MeaningOf(absl::string_view text) {
  if (absl::StrContains(text, "Connection refused"))
    return "none answers there, the connection was refused; `tandem up` starts one";
  if (absl::StrContains(text, "http1.x server"))
    return "that is an HTTP port, expected the router's gRPC port";
  // Other errors of TLS name a certificate, and gRPC's text says which.
  if (absl::StrContains(text, "wrong version number") ||
      absl::StrContains(text, "WRONG_VERSION_NUMBER"))
    return "the server speaks no TLS, expected no --tls-ca";
  if (absl::StrContains(text, "Cancelling all calls"))
    return "the router shut down and ended the call";
  return "";
}

}  // namespace

absl::Status ExplainCallError(const std::string& router, bool has_key, const absl::Status& plain) {
  if (absl::IsUnauthenticated(plain) && !has_key)
    return absl::UnauthenticatedError("--api-key is missing: this router requires keys");
  const bool cancelled = absl::IsCancelled(plain);
  if (!absl::IsUnavailable(plain) && !absl::IsDeadlineExceeded(plain) && !cancelled) return plain;
  absl::string_view text = MeaningOf(plain.message());
  if (text.empty()) text = cancelled ? "the router ended the call" : plain.message();
  return absl::Status(plain.code(), absl::StrCat("router at ", router, ": ", text));
}

}  // namespace tandem::cli
