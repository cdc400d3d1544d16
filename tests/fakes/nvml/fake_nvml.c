/* A libnvidia-ml.so.1 that answers from a text file.
 *
 * FAKE_NVML names the scenario; it is read again whenever its mtime, size or inode changes (write a new file and
 * rename it over the old one). FAKE_NVML_LOG, if set, gets one line per call.
 *
 *   init = DRIVER_NOT_LOADED          what nvmlInit returns; `count` is the number of devices
 *   delay_ms = 200                    every call takes so long; delay_ms.<function> only that one
 *   error.<function> = TIMEOUT        that function fails
 *   gpu0.mem.used = 40G               a device's value; `gpu.` stands for all devices
 *   gpu0.mig1.mem.total = 9856M       a MIG instance's value
 *   gpu0.power = NOT_SUPPORTED        an error name as value; a missing key means the same
 *   gpu0.mem.used = 0:600M 12:40G     steps, by seconds since the first nvmlInit
 *   gpu0.procs = 7/C/40G 8/G/NA 9/M/1G/1/0    pid/type/bytes[/gpu instance/compute instance]
 *   gpu0.lost = 1, gpu0.handle = GPU_IS_LOST, gpu0.field.186.1 = 548000, gpu0.energy = auto, gpu0.proc_stride = 32
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

#include "nvml.h"

#define EXPORT __attribute__((visibility("default")))
#define MAX_GPUS 64
#define MAX_MIG 16
#define MAX_LINES 4096
#define TRY(call)                                                                                                  \
    do {                                                                                                           \
        nvmlReturn_t tried_ = (call);                                                                              \
        if (tried_ != NVML_SUCCESS) return tried_;                                                                 \
    } while (0)

typedef unsigned long long u64;

struct entry {
    char key[96];
    char value[1024];
};
/* A device handle points into `devices`; mig is -1 for the whole GPU. */
struct nvmlDevice_st {
    int gpu, mig;
};

static struct entry entries[MAX_LINES];
static int entry_count;
static struct stat loaded;
static struct nvmlDevice_st devices[MAX_GPUS][MAX_MIG + 1];
static struct timespec started;
static int references;

static const struct {
    const char *name;
    int code;
    const char *text;
} ERRORS[] = {
    {"SUCCESS", 0, "Success"},
    {"UNINITIALIZED", 1, "Uninitialized"},
    {"INVALID_ARGUMENT", 2, "Invalid Argument"},
    {"NOT_SUPPORTED", 3, "Not Supported"},
    {"NO_PERMISSION", 4, "Insufficient Permissions"},
    {"NOT_FOUND", 6, "Not Found"},
    {"INSUFFICIENT_SIZE", 7, "Insufficient Size"},
    {"DRIVER_NOT_LOADED", 9, "Driver Not Loaded"},
    {"TIMEOUT", 10, "Timeout"},
    {"IRQ_ISSUE", 11, "Interrupt Request Issue"},
    {"LIBRARY_NOT_FOUND", 12, "NVML Shared Library Not Found"},
    {"FUNCTION_NOT_FOUND", 13, "Function Not Found"},
    {"CORRUPTED_INFOROM", 14, "Corrupted infoROM"},
    {"GPU_IS_LOST", 15, "GPU is lost"},
    {"RESET_REQUIRED", 16, "GPU requires reset"},
    {"OPERATING_SYSTEM", 17, "Operating System call failed"},
    {"LIB_RM_VERSION_MISMATCH", 18, "RM has detected an NVML/RM version mismatch."},
    {"IN_USE", 19, "In use by another client"},
    {"MEMORY", 20, "Insufficient Memory"},
    {"NO_DATA", 21, "No data"},
    {"ARGUMENT_VERSION_MISMATCH", 25, "Version mismatch"},
    {"DEPRECATED", 26, "Deprecated"},
    {"NOT_READY", 27, "Not ready"},
    {"GPU_NOT_FOUND", 28, "GPU not found"},
    {"INVALID_STATE", 29, "Invalid state"},
    {"UNKNOWN", 999, "Unknown Error"},
};
#define ERROR_COUNT (sizeof ERRORS / sizeof *ERRORS)

static int error_code(const char *name) {
    for (size_t i = 0; i < ERROR_COUNT; i++)
        if (!strcmp(name, ERRORS[i].name)) return ERRORS[i].code;
    return -1;
}

static double elapsed(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - started.tv_sec) + (double)(now.tv_nsec - started.tv_nsec) / 1e9;
}

/* ---- the scenario file ------------------------------------------------------------------------------------------ */

static char *trim(char *text) {
    while (isspace((unsigned char)*text)) text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1])) *--end = 0;
    return text;
}

static void parse(FILE *file) {
    char line[1200];
    entry_count = 0;
    while (entry_count < MAX_LINES && fgets(line, sizeof line, file)) {
        char *equals = strchr(line, '=');
        if (!equals || *trim(line) == '#') continue;
        *equals = 0;
        struct entry *entry = &entries[entry_count++];
        snprintf(entry->key, sizeof entry->key, "%s", trim(line));
        snprintf(entry->value, sizeof entry->value, "%s", trim(equals + 1));
    }
}

static void load(void) {
    const char *path = getenv("FAKE_NVML");
    struct stat now;
    if (!path || stat(path, &now)) return;
    if (entry_count && now.st_ino == loaded.st_ino && now.st_size == loaded.st_size &&
        now.st_mtim.tv_sec == loaded.st_mtim.tv_sec && now.st_mtim.tv_nsec == loaded.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    parse(file);
    fclose(file);
    loaded = now;
}

static const char *get(const char *key) {
    for (int i = entry_count - 1; i >= 0; i--) /* the last line wins */
        if (!strcmp(entries[i].key, key)) return entries[i].value;
    return NULL;
}

static const char *device_get(nvmlDevice_t device, const char *key) {
    char full[160];
    if (device->mig >= 0) {
        snprintf(full, sizeof full, "gpu%d.mig%d.%s", device->gpu, device->mig, key);
        return get(full);
    }
    snprintf(full, sizeof full, "gpu%d.%s", device->gpu, key);
    const char *own = get(full);
    snprintf(full, sizeof full, "gpu.%s", key);
    return own ? own : get(full);
}

/* The value in force now: of `0:a 5:b` the last step whose second has come. */
static void step(const char *value, char *out, size_t size) {
    char copy[1024], *end, *rest = NULL;
    snprintf(copy, sizeof copy, "%s", value);
    strtod(copy, &end);
    if (end == copy || *end != ':') {
        snprintf(out, size, "%s", value);
        return;
    }
    double now = elapsed();
    snprintf(out, size, "NOT_SUPPORTED"); /* before the first step */
    for (char *part = strtok_r(copy, " \t", &rest); part; part = strtok_r(NULL, " \t", &rest))
        if (strtod(part, &end) <= now && *end == ':') snprintf(out, size, "%s", end + 1);
}

static nvmlReturn_t number(const char *value, double *out) {
    char text[1024], *end;
    if (!value) return NVML_ERROR_NOT_SUPPORTED;
    step(value, text, sizeof text);
    int code = error_code(text);
    if (code > 0) return (nvmlReturn_t)code;
    *out = strtod(text, &end);
    const char *units = "KMGT", *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    for (long power = unit ? unit - units + 1 : 0; power > 0; power--) *out *= 1024;
    return NVML_SUCCESS;
}

static nvmlReturn_t device_number(nvmlDevice_t device, const char *key, double *out) {
    return number(device_get(device, key), out);
}

static nvmlReturn_t device_uint(nvmlDevice_t device, const char *key, unsigned int *out) {
    double value;
    TRY(device_number(device, key, &value));
    *out = (unsigned int)value;
    return NVML_SUCCESS;
}

static double number_or(nvmlDevice_t device, const char *key, double otherwise) {
    double value;
    return device_number(device, key, &value) == NVML_SUCCESS ? value : otherwise;
}

static nvmlReturn_t device_text(nvmlDevice_t device, const char *key, char *out, unsigned int size) {
    const char *value = device_get(device, key);
    if (!value) return NVML_ERROR_NOT_SUPPORTED;
    int code = error_code(value);
    if (code > 0) return (nvmlReturn_t)code;
    if (strlen(value) >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, value);
    return NVML_SUCCESS;
}

/* ---- what every call does first --------------------------------------------------------------------------------- */

static void write_log(const char *function) {
    const char *path = getenv("FAKE_NVML_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%.3f %s\n", elapsed(), function);
    fclose(file);
}

static void wait_as_told(const char *function) {
    char key[128];
    double ms = 0;
    snprintf(key, sizeof key, "delay_ms.%s", function);
    const char *value = get(key) ? get(key) : get("delay_ms");
    if (!value || number(value, &ms) != NVML_SUCCESS || ms <= 0) return;
    struct timespec pause = {(time_t)(ms / 1000), (long)((u64)ms % 1000 * 1000000)};
    nanosleep(&pause, NULL);
}

static nvmlReturn_t enter(const char *function) {
    char key[128];
    load();
    write_log(function);
    wait_as_told(function);
    load();
    snprintf(key, sizeof key, "error.%s", function);
    const char *error = get(key);
    if (error && error_code(error) > 0) return (nvmlReturn_t)error_code(error);
    return references ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

static nvmlReturn_t enter_device(const char *function, nvmlDevice_t device) {
    TRY(enter(function));
    if (!device) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlDevice_t whole = &devices[device->gpu][0];
    return number_or(device, "lost", 0) || number_or(whole, "lost", 0) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

/* ---- the library ------------------------------------------------------------------------------------------------ */

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    if (!started.tv_sec) clock_gettime(CLOCK_MONOTONIC, &started);
    references++;
    nvmlReturn_t result = enter("nvmlInitWithFlags");
    const char *init = get("init");
    if (result == NVML_SUCCESS && init && error_code(init) > 0) result = (nvmlReturn_t)error_code(init);
    if (result != NVML_SUCCESS) references--;
    return result;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT nvmlReturn_t nvmlShutdown(void) {
    TRY(enter("nvmlShutdown"));
    references--;
    return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
    for (size_t i = 0; i < ERROR_COUNT; i++)
        if (ERRORS[i].code == (int)result) return ERRORS[i].text;
    return "Unknown Error";
}

static nvmlReturn_t global_text(const char *function, const char *key, char *out, unsigned int size) {
    TRY(enter(function));
    const char *value = get(key);
    if (!value) return NVML_ERROR_NOT_SUPPORTED;
    snprintf(out, size, "%s", value);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned int size) {
    return global_text("nvmlSystemGetDriverVersion", "driver", out, size);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned int size) {
    return global_text("nvmlSystemGetNVMLVersion", "nvml", out, size);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    double value = 0;
    TRY(enter("nvmlDeviceGetCount_v2"));
    if (get("count")) TRY(number(get("count"), &value));
    *count = (unsigned int)value;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    double count = 0;
    TRY(enter("nvmlDeviceGetHandleByIndex_v2"));
    if (get("count")) TRY(number(get("count"), &count));
    if (index >= MAX_GPUS || index >= (unsigned int)count) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlDevice_t found = &devices[index][0];
    *found = (struct nvmlDevice_st){(int)index, -1};
    const char *handle = device_get(found, "handle");
    if (handle && error_code(handle) > 0) return (nvmlReturn_t)error_code(handle);
    *device = found;
    return NVML_SUCCESS;
}

/* ---- MIG -------------------------------------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    TRY(enter_device("nvmlDeviceGetMigMode", device));
    TRY(device_uint(device, "mig", current));
    *pending = *current;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    TRY(enter_device("nvmlDeviceGetMaxMigDeviceCount", device));
    *count = (unsigned int)number_or(device, "mig_max", 0);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
    TRY(enter_device("nvmlDeviceGetMigDeviceHandleByIndex", device));
    if (index >= MAX_MIG) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlDevice_t found = &devices[device->gpu][index + 1];
    *found = (struct nvmlDevice_st){device->gpu, (int)index};
    if (!device_get(found, "uuid")) return NVML_ERROR_NOT_FOUND;
    *mig = found;
    return NVML_SUCCESS;
}

/* ---- values ----------------------------------------------------------------------------------------------------- */

#define TEXT(function, key)                                                                                        \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, char *out, unsigned int size) {                              \
        TRY(enter_device(#function, device));                                                                      \
        return device_text(device, key, out, size);                                                                \
    }
#define UINT(function, key)                                                                                        \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned int *out) {                                         \
        TRY(enter_device(#function, device));                                                                      \
        return device_uint(device, key, out);                                                                      \
    }
#define ULONG(function, key)                                                                                       \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, u64 *out) {                                                  \
        double value;                                                                                              \
        TRY(enter_device(#function, device));                                                                      \
        TRY(device_number(device, key, &value));                                                                   \
        *out = (u64)value;                                                                                         \
        return NVML_SUCCESS;                                                                                       \
    }

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
UINT(nvmlDeviceGetMinorNumber, "minor")
UINT(nvmlDeviceGetNumaNodeId, "numa_node")
UINT(nvmlDeviceGetGpuInstanceId, "gi")
UINT(nvmlDeviceGetComputeInstanceId, "ci")
UINT(nvmlDeviceGetPowerUsage, "power")
UINT(nvmlDeviceGetPowerManagementLimit, "power_limit")
UINT(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
UINT(nvmlDeviceGetFanSpeed, "fan")
ULONG(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle")
ULONG(nvmlDeviceGetCurrentClocksEventReasons, "throttle")

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out) {
    TRY(enter_device("nvmlDeviceGetUtilizationRates", device));
    TRY(device_uint(device, "util", &out->gpu));
    out->memory = (unsigned int)number_or(device, "util_mem", 0);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *out) {
    (void)sensor;
    TRY(enter_device("nvmlDeviceGetTemperature", device));
    return device_uint(device, "temp", out);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *out) {
    unsigned int value;
    TRY(enter_device("nvmlDeviceGetTemperatureV", device));
    TRY(device_uint(device, "temp", &value));
    out->temperature = (int)value;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *out) {
    static const char *const KEYS[] = {"clock.graphics", "clock.sm", "clock.mem", "clock.video"};
    TRY(enter_device("nvmlDeviceGetClockInfo", device));
    if ((unsigned int)type >= sizeof KEYS / sizeof *KEYS) return NVML_ERROR_INVALID_ARGUMENT;
    return device_uint(device, KEYS[type], out);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *out) {
    static const char *const KEYS[] = {"clock_max.graphics", "clock_max.sm", "clock_max.mem", "clock_max.video"};
    TRY(enter_device("nvmlDeviceGetMaxClockInfo", device));
    if ((unsigned int)type >= sizeof KEYS / sizeof *KEYS) return NVML_ERROR_INVALID_ARGUMENT;
    return device_uint(device, KEYS[type], out);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t type,
                                                      unsigned int *out) {
    static const char *const KEYS[] = {"temp_threshold.0", "temp_threshold.1"};
    TRY(enter_device("nvmlDeviceGetTemperatureThreshold", device));
    if ((unsigned int)type >= sizeof KEYS / sizeof *KEYS) return NVML_ERROR_NOT_SUPPORTED;
    return device_uint(device, KEYS[type], out);
}

EXPORT nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *out) {
    TRY(enter_device("nvmlDeviceGetAddressingMode", device));
    return device_uint(device, "addressing", &out->value);
}

/* `auto` counts up at `energy_power`, else at `power` (both mW), from the first nvmlInit on. */
EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, u64 *out) {
    double value;
    TRY(enter_device("nvmlDeviceGetTotalEnergyConsumption", device));
    const char *energy = device_get(device, "energy");
    if (energy && !strcmp(energy, "auto"))
        value = number_or(device, "energy_power", number_or(device, "power", 0)) * elapsed();
    else
        TRY(number(energy, &value));
    *out = (u64)value;
    return NVML_SUCCESS;
}

static nvmlReturn_t field_value(nvmlDevice_t device, const nvmlFieldValue_t *field, double *out) {
    char key[64];
    snprintf(key, sizeof key, "field.%u.%u", field->fieldId, field->scopeId);
    if (!device_get(device, key) && field->scopeId == 0) snprintf(key, sizeof key, "field.%u", field->fieldId);
    return device_number(device, key, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields) {
    TRY(enter_device("nvmlDeviceGetFieldValues", device));
    for (int i = 0; i < count; i++) {
        double value = 0;
        fields[i].nvmlReturn = field_value(device, &fields[i], &value);
        fields[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        fields[i].value.uiVal = (unsigned int)value;
    }
    return NVML_SUCCESS;
}

/* ---- memory: `used` of version 1 contains what the driver reserves ----------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out) {
    double total, used;
    TRY(enter_device("nvmlDeviceGetMemoryInfo", device));
    TRY(device_number(device, "mem.total", &total));
    TRY(device_number(device, "mem.used", &used));
    out->total = (u64)total;
    out->used = (u64)(used + number_or(device, "mem.reserved", 0));
    out->free = out->total - out->used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out) {
    double total, used;
    TRY(enter_device("nvmlDeviceGetMemoryInfo_v2", device));
    if (out->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    TRY(device_number(device, "mem.total", &total));
    TRY(device_number(device, "mem.used", &used));
    out->total = (u64)total;
    out->used = (u64)used;
    out->reserved = (u64)number_or(device, "mem.reserved", 0);
    out->free = out->total - out->reserved - out->used;
    return NVML_SUCCESS;
}

/* ---- processes -------------------------------------------------------------------------------------------------- */

struct process {
    unsigned int pid;
    u64 bytes;
    unsigned int gi, ci;
};

static int parse_process(char *text, char type, struct process *out) {
    char *rest = NULL, *pid = strtok_r(text, "/", &rest), *kind = strtok_r(NULL, "/", &rest);
    char *bytes = strtok_r(NULL, "/", &rest), *gi = strtok_r(NULL, "/", &rest), *ci = strtok_r(NULL, "/", &rest);
    double value = 0;
    if (!pid || !kind || !bytes || *kind != type) return 0;
    number(bytes, &value);
    out->pid = (unsigned int)strtoul(pid, NULL, 10);
    out->bytes = strcmp(bytes, "NA") ? (u64)value : ~0ULL;
    out->gi = gi ? (unsigned int)atoi(gi) : ~0U;
    out->ci = ci ? (unsigned int)atoi(ci) : ~0U;
    return 1;
}

/* Writes records `stride` bytes apart, as the R535 drivers did with a longer struct than the caller's. */
static nvmlReturn_t processes(const char *function, nvmlDevice_t device, char type, unsigned int *count, void *out) {
    char copy[1024], *rest = NULL;
    struct process found[64];
    unsigned int n = 0;
    TRY(enter_device(function, device));
    const char *value = device_get(device, "procs");
    if (value && error_code(value) > 0) return (nvmlReturn_t)error_code(value);
    snprintf(copy, sizeof copy, "%s", value ? value : "");
    for (char *part = strtok_r(copy, " \t", &rest); part && n < 64; part = strtok_r(NULL, " \t", &rest))
        n += (unsigned int)parse_process(part, type, &found[n]);
    unsigned int room = *count;
    *count = n;
    if (n && (!out || room < n)) return NVML_ERROR_INSUFFICIENT_SIZE;
    size_t stride = (size_t)number_or(device, "proc_stride", sizeof *found);
    for (unsigned int i = 0; i < n; i++)
        if (i * stride + sizeof *found <= room * sizeof *found) memcpy((char *)out + i * stride, &found[i], sizeof *found);
    return NVML_SUCCESS;
}

#define PROCESSES(function, type)                                                                                  \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *out) {               \
        return processes(#function, device, type, count, out);                                                     \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 'C')
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G')
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M')
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 'C')
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, 'G')
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'M')
