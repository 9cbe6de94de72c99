#include "common/rpc/library_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"

namespace tandem::rpc {
namespace {

void OnGrpc(gpr_log_func_args* args) {
  Log(LogLevel::kDebug, "gRPC says",
      {{"text", args->message}, {"at", absl::StrCat(args->file, ":", args->line)}});
}

void OnProtobuf(google::protobuf::LogLevel, const char* file, int line, const std::string& text) {
  Log(LogLevel::kDebug, "Protobuf says", {{"text", text}, {"at", absl::StrCat(file, ":", line)}});
}

}  // namespace

void LogLibraryMessages() {
  static const bool set = [] {
    gpr_set_log_function(&OnGrpc);
    google::protobuf::SetLogHandler(&OnProtobuf);
    return true;
  }();
  static_cast<void>(set);
}

}  // namespace tandem::rpc
