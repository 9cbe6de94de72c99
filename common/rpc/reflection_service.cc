#include "common/rpc/reflection_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/impl/server_initializer.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/shown_text.h"
#include "grpc/reflection/v1/reflection.pb.h"

namespace tandem::rpc {
namespace {

namespace v1 = grpc::reflection::v1;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

void Refuse(const std::string& what, v1::ServerReflectionResponse& response) {
  response.mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
  response.mutable_error_response()->set_error_message(
      absl::StrCat(Shown(what), ": not known to this server"));
}

// The file, and every file that it imports, each once.
void AddFiles(const FileDescriptor* root, v1::FileDescriptorResponse& response) {
  std::vector<const FileDescriptor*> waiting = {root};
  absl::flat_hash_set<const FileDescriptor*> seen = {root};
  while (!waiting.empty()) {
    const FileDescriptor* file = waiting.back();
    waiting.pop_back();
    google::protobuf::FileDescriptorProto description;
    file->CopyTo(&description);
    description.SerializeToString(response.add_file_descriptor_proto());
    for (int i = 0; i < file->dependency_count(); ++i) {
      if (seen.insert(file->dependency(i)).second) waiting.push_back(file->dependency(i));
    }
  }
}

// What a server tells about itself. Thread safety: any thread, after SetServices.
class Descriptions {
 public:
  // Before the first call.
  void SetServices(std::vector<std::string> names) { names_ = std::move(names); }

  v1::ServerReflectionResponse Answer(const v1::ServerReflectionRequest& request) const {
    v1::ServerReflectionResponse response;
    response.set_valid_host(request.host());
    *response.mutable_original_request() = request;
    Fill(request, response);
    return response;
  }

 private:
  void Fill(const v1::ServerReflectionRequest& request,
            v1::ServerReflectionResponse& response) const {
    switch (request.message_request_case()) {
      case v1::ServerReflectionRequest::kListServices:
        for (const std::string& name : names_) {
          response.mutable_list_services_response()->add_service()->set_name(name);
        }
        return;
      case v1::ServerReflectionRequest::kFileByFilename:
        return AnswerFile(pool_.FindFileByName(request.file_by_filename()),
                          request.file_by_filename(), response);
      case v1::ServerReflectionRequest::kFileContainingSymbol:
        return AnswerFile(pool_.FindFileContainingSymbol(request.file_containing_symbol()),
                          request.file_containing_symbol(), response);
      case v1::ServerReflectionRequest::kFileContainingExtension:
        return AnswerExtension(request.file_containing_extension(), response);
      case v1::ServerReflectionRequest::kAllExtensionNumbersOfType:
        return AnswerNumbers(request.all_extension_numbers_of_type(), response);
      case v1::ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
        break;
    }
    response.mutable_error_response()->set_error_code(grpc::StatusCode::INVALID_ARGUMENT);
    response.mutable_error_response()->set_error_message(
        "message_request: is missing or unknown, expected one of the protocol's five requests");
  }
  static void AnswerFile(const FileDescriptor* file, const std::string& what,
                         v1::ServerReflectionResponse& response) {
    if (file == nullptr) return Refuse(what, response);
    AddFiles(file, *response.mutable_file_descriptor_response());
  }
  void AnswerExtension(const v1::ExtensionRequest& asked,
                       v1::ServerReflectionResponse& response) const {
    const auto* type = pool_.FindMessageTypeByName(asked.containing_type());
    const FieldDescriptor* field =
        type == nullptr ? nullptr : pool_.FindExtensionByNumber(type, asked.extension_number());
    AnswerFile(field == nullptr ? nullptr : field->file(),
               absl::StrCat(asked.containing_type(), " ", asked.extension_number()), response);
  }
  void AnswerNumbers(const std::string& name, v1::ServerReflectionResponse& response) const {
    const auto* type = pool_.FindMessageTypeByName(name);
    if (type == nullptr) return Refuse(name, response);
    std::vector<const FieldDescriptor*> extensions;
    pool_.FindAllExtensions(type, &extensions);
    auto& numbers = *response.mutable_all_extension_numbers_response();
    numbers.set_base_type_name(name);
    for (const FieldDescriptor* field : extensions) numbers.add_extension_number(field->number());
  }

  const DescriptorPool& pool_ = *DescriptorPool::generated_pool();
  // Bound: the services of one server.
  std::vector<std::string> names_;
};

using RawReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
using RawHandler = grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>;

class Stream;

// The streams of one server that are open, in both versions of the protocol. Thread safety: any
// thread.
class OpenStreams {
 public:
  // The oldest stream, when there are too many now: the caller cancels it.
  Stream* Add(Stream* stream);
  void Remove(Stream* stream) {
    absl::MutexLock lock(&mutex_);
    streams_.erase(std::remove(streams_.begin(), streams_.end(), stream), streams_.end());
  }

 private:
  absl::Mutex mutex_;
  // Bound: kReflectionStreamsMax. The oldest first.
  std::vector<Stream*> streams_ ABSL_GUARDED_BY(mutex_);
};

// What the streams of one server share.
struct Shared {
  Descriptions descriptions;
  OpenStreams open;
};

// One call. It takes requests as bytes, so that it can refuse a large one before it is parsed: as a
// message, two bytes of a request may take a hundred. Thread safety: gRPC calls the reactions, one
// at a time; Cancel from any thread. Owner: itself, until OnDone.
class Stream final : public RawReactor {
 public:
  static RawReactor* Start(const std::shared_ptr<Shared>& shared,
                           grpc::CallbackServerContext& context) {
    auto made = std::make_shared<Stream>(shared, context);
    Stream* stream = made.get();
    stream->self_ = std::move(made);
    Stream* oldest = shared->open.Add(stream);
    stream->StartRead(&stream->bytes_);
    if (oldest != nullptr) oldest->Cancel();
    return stream;
  }
  Stream(std::shared_ptr<Shared> shared, grpc::CallbackServerContext& context)
      : shared_(std::move(shared)), context_(context) {}

  // The stream does not end before its Cancel, which must follow. REQUIRES: it has not ended.
  void Hold() { ++holds_; }
  // What the stream waits for fails then, and it ends.
  void Cancel() {
    context_.TryCancel();
    Release();
  }

  void OnReadDone(bool ok) override { ok ? Reply() : End(grpc::Status::OK); }
  void OnWriteDone(bool ok) override { ok ? StartRead(&bytes_) : End(grpc::Status::OK); }
  void OnDone() override { self_ = nullptr; }

 private:
  void Reply() {
    const size_t size = bytes_.Length();
    if (size > kReflectionRequestBytesMax) {
      bytes_.Clear();
      return End({grpc::StatusCode::RESOURCE_EXHAUSTED,
                  absl::StrCat("the request has ", size, " bytes, expected at most ",
                               kReflectionRequestBytesMax)});
    }
    grpc::Slice slice;
    v1::ServerReflectionRequest request;
    if (!bytes_.DumpToSingleSlice(&slice).ok() ||
        !request.ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) {
      return End({grpc::StatusCode::INVALID_ARGUMENT,
                  absl::StrCat("the request's ", size,
                               " bytes are not a well-formed ServerReflectionRequest")});
    }
    slice = grpc::Slice(shared_->descriptions.Answer(request).SerializeAsString());
    bytes_ = grpc::ByteBuffer(&slice, 1);
    StartWrite(&bytes_);
  }
  // Called once, because either a read or a write is under way.
  void End(const grpc::Status& status) {
    status_ = status;
    shared_->open.Remove(this);
    Release();
  }
  void Release() {
    if (--holds_ == 0) Finish(status_);
  }

  std::shared_ptr<Stream> self_;  // held until OnDone
  const std::shared_ptr<Shared> shared_;
  grpc::CallbackServerContext& context_;  // outlives the stream
  grpc::ByteBuffer bytes_;                // of the message that is being read or written
  grpc::Status status_;
  std::atomic<int> holds_{1};  // End's, and one for each Cancel to come
};

Stream* OpenStreams::Add(Stream* stream) {
  absl::MutexLock lock(&mutex_);
  streams_.push_back(stream);
  if (streams_.size() <= kReflectionStreamsMax) return nullptr;
  Stream* oldest = streams_.front();
  streams_.erase(streams_.begin());
  oldest->Hold();
  return oldest;
}

// The versions of the protocol differ in their name only.
class ReflectionService final : public grpc::Service {
 public:
  ReflectionService(const char* method, const std::shared_ptr<Shared>& shared) {
    // The server's base class takes both over.
    AddMethod(std::make_unique<grpc::internal::RpcServiceMethod>(
                  method, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr)
                  .release());
    auto start = [shared](grpc::CallbackServerContext* context) {
      return Stream::Start(shared, *context);
    };
    MarkMethodRawCallback(0, std::make_unique<RawHandler>(std::move(start)).release());
  }
};

// What gRPC's library calls the plugin that it adds to every server.
constexpr char kLibraryPlugin[] = "proto_server_reflection";

// Tells `shared`, if there is one, the server's services once they are known.
class ServicesPlugin final : public grpc::ServerBuilderPlugin {
 public:
  explicit ServicesPlugin(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  std::string name() override { return "tandem.reflection"; }
  void InitServer(grpc::ServerInitializer*) override {}
  void Finish(grpc::ServerInitializer* server) override {
    shared_->descriptions.SetServices(*server->GetServiceList());
  }
  void ChangeArguments(const std::string&, void*) override {}

 private:
  const std::shared_ptr<Shared> shared_;
};

class ReflectionOption final : public grpc::ServerBuilderOption {
 public:
  // `shared` is null in a server without reflection.
  explicit ReflectionOption(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    // The library's holds a thread for each open stream, and parses messages of any size.
    plugins->erase(std::remove_if(plugins->begin(), plugins->end(),
                                  [](const std::unique_ptr<grpc::ServerBuilderPlugin>& plugin) {
                                    return plugin->name() == kLibraryPlugin;
                                  }),
                   plugins->end());
    if (shared_ != nullptr) plugins->push_back(std::make_unique<ServicesPlugin>(shared_));
  }

 private:
  const std::shared_ptr<Shared> shared_;
};

}  // namespace

void RemoveReflection(grpc::ServerBuilder& builder) {
  builder.SetOption(std::make_unique<ReflectionOption>(nullptr));
}

std::vector<std::unique_ptr<grpc::Service>> AddReflection(grpc::ServerBuilder& builder) {
  // Keeps the library linked, whose description of version v1alpha the answers quote.
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  const auto shared = std::make_shared<Shared>();
  builder.SetOption(std::make_unique<ReflectionOption>(shared));
  std::vector<std::unique_ptr<grpc::Service>> services;
  for (const char* method : {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                             "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
    services.push_back(std::make_unique<ReflectionService>(method, shared));
    builder.RegisterService(services.back().get());
  }
  return services;
}

}  // namespace tandem::rpc
