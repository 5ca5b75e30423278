/* A libcuda without a GPU, for the smoke's tests: FAKE_CUDA="init=999 count=2 alloc=2 lost=1 bad=1" says what fails. */
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ptr;
static __thread int current = 0;
static int owner_of[64];
static void *blocks[64];
static int used = 0;

static int said(const char *name, int otherwise) {
  const char *all = getenv("FAKE_CUDA"), *at = all ? strstr(all, name) : 0;
  return at ? atoi(at + strlen(name) + 1) : otherwise;
}
int cuInit(unsigned flags) { return said("init", 0); }
int cuDriverGetVersion(int *v) { *v = said("version", 12080); return 0; }
int cuDeviceGetCount(int *n) { *n = said("count", 1); return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : 0; return 0; }
int cuDeviceGetName(char *n, int len, int d) { strncpy(n, "NVIDIA H200", len); return 0; }
int cuDeviceTotalMem_v2(size_t *t, int d) { *t = 1ull << 37; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)(long)(d + 1); return d == said("bad", -1) ? 101 : 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { return 0; }
int cuCtxSetCurrent(void *c) { current = (int)(long)c - 1; return 0; }
int cuCtxSynchronize(void) { return said("sync", 0); }
int cuMemAlloc_v2(ptr *p, size_t n) {
  if (said("alloc", 0)) return said("alloc", 0);
  blocks[used] = malloc(n); owner_of[used] = current; *p = (ptr)blocks[used++];
  return 0;
}
int cuMemFree_v2(ptr p) { return 0; }
int cuMemsetD8_v2(ptr p, unsigned char v, size_t n) {
  for (int i = 0; i < used; i++)
    if ((ptr)blocks[i] == p && owner_of[i] != current && said("lost", 0)) return 0;
  memset((void *)p, v, n);
  return 0;
}
int cuMemcpyDtoH_v2(void *to, ptr from, size_t n) { memcpy(to, (void *)from, n); return 0; }
int cuDeviceCanAccessPeer(int *yes, int a, int b) { *yes = said("peer", 1); return 0; }
int cuCtxEnablePeerAccess(void *c, unsigned flags) { return 0; }
int cuDeviceGetPCIBusId(char *to, int len, int d) { to[0] = 'a' + d; to[1] = 0; return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) { *handle = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *to) { to[1] = said("free", 90000) * (1ull << 20); return 0; }
