#include "common/rpc/error_details.h"

#include <google/protobuf/message.h>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "common/rpc/status.h"
#include "tandem/v1/error_details.pb.h"

namespace tandem::rpc {
namespace {

// After this time a full queue has likely moved on, and a restarted node is back.
constexpr int64_t kRetryDelaySeconds = 1;
// A message travels three times in metadata, of which gRPC clients accept 8 KiB in all. Only
// grpc-message carries it whole; the details carry at most this much.
constexpr size_t kDetailBytesMax = 512;

void AddDetail(absl::string_view type, const google::protobuf::Message& detail,
               v1::ErrorStatus& error) {
  google::protobuf::Any& any = *error.add_details();
  any.set_type_url("type.googleapis.com/google.rpc." + std::string(type));
  any.set_value(detail.SerializeAsString());
}

}  // namespace

absl::string_view FieldOf(absl::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == absl::string_view::npos) return "";
  const absl::string_view field = message.substr(0, colon);
  for (const char c : field)
    if (!absl::ascii_isalnum(c) && c != '_' && c != '.' && c != '[' && c != ']') return "";
  return field;
}

grpc::Status ToGrpcWithDetails(const absl::Status& status) {
  const grpc::Status plain = ToGrpc(status);
  v1::ErrorStatus error;
  error.set_code(plain.error_code());
  error.set_message(plain.error_message().substr(0, kDetailBytesMax));
  if (absl::IsInvalidArgument(status)) {
    const std::string message = plain.error_message();
    const absl::string_view field = FieldOf(message);
    if (field.empty()) return plain;
    v1::BadRequest bad;
    v1::BadRequest::FieldViolation& violation = *bad.add_field_violations();
    violation.set_field(std::string(field));
    violation.set_description(message.substr(field.size() + 2, kDetailBytesMax));
    AddDetail("BadRequest", bad, error);
  } else if (absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) {
    v1::RetryInfo retry;
    const absl::optional<absl::Cord> given = status.GetPayload(kRetryAfterPayload);
    int64_t seconds = kRetryDelaySeconds;
    if (given.has_value() && !absl::SimpleAtoi(std::string(*given), &seconds)) {
      seconds = kRetryDelaySeconds;
    }
    retry.mutable_retry_delay()->set_seconds(seconds);
    AddDetail("RetryInfo", retry, error);
  } else {
    return plain;
  }
  return grpc::Status(plain.error_code(), plain.error_message(), error.SerializeAsString());
}

}  // namespace tandem::rpc
