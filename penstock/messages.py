"""The messages of the Open Inference Protocol's gRPC service, by name, number and type as the protocol fixes them.

Protocol: https://github.com/kserve/open-inference-protocol, with the extensions of Triton's grpc_service.proto. They
are kept in a pool of their own, so that a client library's copies may be in the same process.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE, SERVICE = "inference", "inference.GRPCInferenceService"
_FILE = "penstock/inference.proto"

# Message: field type number; … A * is a list of them, map a map of strings to them, @ in the message's one-of.
_MESSAGES = """
ServerLiveRequest
ServerLiveResponse: live bool 1
ServerReadyRequest
ServerReadyResponse: ready bool 1
ModelReadyRequest: name string 1; version string 2
ModelReadyResponse: ready bool 1
ServerMetadataRequest
ServerMetadataResponse: name string 1; version string 2; extensions *string 3
ModelMetadataRequest: name string 1; version string 2
ModelMetadataResponse: name string 1; versions *string 2; platform string 3; inputs *.TensorMetadata 4; outputs *.TensorMetadata 5
ModelMetadataResponse.TensorMetadata: name string 1; datatype string 2; shape *int64 3
InferParameter: bool_param @bool 1; int64_param @int64 2; string_param @string 3; double_param @double 4; uint64_param @uint64 5
InferTensorContents: bool_contents *bool 1; int_contents *int32 2; int64_contents *int64 3; uint_contents *uint32 4; uint64_contents *uint64 5; fp32_contents *float 6; fp64_contents *double 7; bytes_contents *bytes 8
ModelInferRequest: model_name string 1; model_version string 2; id string 3; parameters map InferParameter 4; inputs *.InferInputTensor 5; outputs *.InferRequestedOutputTensor 6; raw_input_contents *bytes 7
ModelInferRequest.InferInputTensor: name string 1; datatype string 2; shape *int64 3; parameters map InferParameter 4; contents InferTensorContents 5
ModelInferRequest.InferRequestedOutputTensor: name string 1; parameters map InferParameter 2
ModelInferResponse: model_name string 1; model_version string 2; id string 3; parameters map InferParameter 4; outputs *.InferOutputTensor 5; raw_output_contents *bytes 6
ModelInferResponse.InferOutputTensor: name string 1; datatype string 2; shape *int64 3; parameters map InferParameter 4; contents InferTensorContents 5
ModelStreamInferResponse: error_message string 1; infer_response ModelInferResponse 2
ModelConfigRequest: name string 1; version string 2
ModelConfigResponse: config ModelConfig 1
ModelConfig: name string 1; platform string 2; version_policy ModelVersionPolicy 3; max_batch_size int32 4; input *ModelInput 5; output *ModelOutput 6; instance_group *ModelInstanceGroup 7; default_model_filename string 8; dynamic_batching ModelDynamicBatching 11; backend string 17; runtime string 25
ModelVersionPolicy: latest .Latest 1
ModelVersionPolicy.Latest: num_versions uint32 1
ModelInput: name string 1; data_type DataType 2; format .Format 3; dims *int64 4; reshape ModelTensorReshape 5
ModelOutput: name string 1; data_type DataType 2; dims *int64 3; reshape ModelTensorReshape 5
ModelTensorReshape: shape *int64 1
ModelInstanceGroup: name string 1; count int32 2; gpus *int32 3; kind .Kind 4; profile *string 5
ModelDynamicBatching
ModelStatisticsRequest: name string 1; version string 2
ModelStatisticsResponse: model_stats *ModelStatistics 1
StatisticDuration: count uint64 1; ns uint64 2
InferStatistics: success StatisticDuration 1; fail StatisticDuration 2; queue StatisticDuration 3; compute_input StatisticDuration 4; compute_infer StatisticDuration 5; compute_output StatisticDuration 6; cache_hit StatisticDuration 7; cache_miss StatisticDuration 8
InferBatchStatistics: batch_size uint64 1; compute_input StatisticDuration 2; compute_infer StatisticDuration 3; compute_output StatisticDuration 4
MemoryUsage: type string 1; id int64 2; byte_size uint64 3
ModelStatistics: name string 1; version string 2; last_inference uint64 3; inference_count uint64 4; execution_count uint64 5; inference_stats InferStatistics 6; batch_stats *InferBatchStatistics 7; memory_usage *MemoryUsage 8
ModelRepositoryParameter: bool_param @bool 1; int64_param @int64 2; string_param @string 3; bytes_param @bytes 4
RepositoryIndexRequest: repository_name string 1; ready bool 2
RepositoryIndexResponse: models *.ModelIndex 1
RepositoryIndexResponse.ModelIndex: name string 1; version string 2; state string 3; reason string 4
RepositoryModelLoadRequest: repository_name string 1; model_name string 2; parameters map ModelRepositoryParameter 3
RepositoryModelLoadResponse
RepositoryModelUnloadRequest: repository_name string 1; model_name string 2; parameters map ModelRepositoryParameter 3
RepositoryModelUnloadResponse
LogSettingsRequest: settings map .SettingValue 1
LogSettingsRequest.SettingValue: bool_param @bool 1; uint32_param @uint32 2; string_param @string 3
LogSettingsResponse: settings map .SettingValue 1
TraceSettingRequest: settings map .SettingValue 1; model_name string 2
TraceSettingRequest.SettingValue: value *string 1
TraceSettingResponse: settings map .SettingValue 1
TraceSettingResponse.SettingValue: value *string 1
SystemSharedMemoryStatusRequest: name string 1
SystemSharedMemoryStatusResponse: regions map .RegionStatus 1
SystemSharedMemoryStatusResponse.RegionStatus: name string 1; key string 2; offset uint64 3; byte_size uint64 4
SystemSharedMemoryRegisterRequest: name string 1; key string 2; offset uint64 3; byte_size uint64 4
SystemSharedMemoryRegisterResponse
SystemSharedMemoryUnregisterRequest: name string 1
SystemSharedMemoryUnregisterResponse
CudaSharedMemoryStatusRequest: name string 1
CudaSharedMemoryStatusResponse: regions map .RegionStatus 1
CudaSharedMemoryStatusResponse.RegionStatus: name string 1; device_id uint64 2; byte_size uint64 3
CudaSharedMemoryRegisterRequest: name string 1; raw_handle bytes 2; device_id int64 3; byte_size uint64 4
CudaSharedMemoryRegisterResponse
CudaSharedMemoryUnregisterRequest: name string 1
CudaSharedMemoryUnregisterResponse
LogSettingsResponse.SettingValue: bool_param @bool 1; uint32_param @uint32 2; string_param @string 3
"""  # noqa: E501
# In the order of their numbers.
_ENUMS = {
    "DataType": "TYPE_INVALID TYPE_BOOL TYPE_UINT8 TYPE_UINT16 TYPE_UINT32 TYPE_UINT64 TYPE_INT8 TYPE_INT16 TYPE_INT32 "
    "TYPE_INT64 TYPE_FP16 TYPE_FP32 TYPE_FP64 TYPE_STRING TYPE_BF16",
    "ModelInput.Format": "FORMAT_NONE FORMAT_NHWC FORMAT_NCHW",
    "ModelInstanceGroup.Kind": "KIND_AUTO KIND_GPU KIND_CPU KIND_MODEL",
}
# Each takes METHODRequest and answers METHODResponse.
METHODS = (
    *("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer", "ModelConfig"),
    *("ModelStatistics", "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload", "LogSettings"),
    *("TraceSetting", "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister"),
    *("CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister"),
)
STREAM = "ModelStreamInfer"


@cache
def pool() -> Any:
    """The descriptors of all of it."""
    made = descriptor_pool.DescriptorPool()
    made.AddSerializedFile(_file().SerializeToString())
    return made


@cache
def message(name: str) -> Any:
    """The class of a message."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=_FILE, package=PACKAGE, syntax="proto3")
    held: dict[str, Any] = {}
    for line in _MESSAGES.strip().splitlines():
        name, _, fields = line.partition(":")
        outer, _, inner = name.partition(".")
        held[name] = made = (held[outer].nested_type if inner else file.message_type).add(name=inner or outer)
        for part in filter(None, map(str.strip, fields.split(";"))):
            _field(made, name, part)
    for name, values in _ENUMS.items():
        outer, _, inner = name.partition(".")
        enum = (held[outer].enum_type if inner else file.enum_type).add(name=inner or outer)
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)
    service = file.service.add(name=SERVICE.rpartition(".")[2])
    for method in METHODS:
        service.method.add(
            name=method, input_type=f".{PACKAGE}.{method}Request", output_type=f".{PACKAGE}.{method}Response"
        )
    service.method.add(
        name=STREAM,
        input_type=f".{PACKAGE}.ModelInferRequest",
        output_type=f".{PACKAGE}.ModelStreamInferResponse",
        client_streaming=True,
        server_streaming=True,
    )
    return file


def _field(made: Any, owner: str, text: str) -> None:
    name, *kind, number = text.split()
    field = made.field.add(name=name, number=int(number), label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL)
    mapped, plain = len(kind) == 2, kind[-1].lstrip("*@")
    if kind[-1].startswith("@"):
        if not made.oneof_decl:
            made.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    if mapped or kind[-1].startswith("*"):
        field.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    if mapped:
        entry = made.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _field(entry, owner, "key string 1")
        _field(entry, owner, f"value {plain} 2")
        _typed(field, f".{PACKAGE}.{owner}.{entry.name}", message=True)
        return
    scalar = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{plain.upper()}", None)
    if scalar is not None:
        field.type = scalar
        return
    full = f"{owner}{plain}" if plain.startswith(".") else plain
    _typed(field, f".{PACKAGE}.{full}", message=full not in _ENUMS)


def _typed(field: Any, name: str, *, message: bool) -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    field.type, field.type_name = kinds.TYPE_MESSAGE if message else kinds.TYPE_ENUM, name
