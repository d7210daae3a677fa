"""stand-in"""
import os,ctypes,tempfile
from pathlib import Path
def default_offload_dir(): return Path.home()/".cache/outgrow/spill"
class DiskTier:
    def __init__(s,d,cap):
        os.makedirs(d,exist_ok=True); fd,n=tempfile.mkstemp(dir=d); os.close(fd); s.fd=os.open(n,os.O_RDWR|os.O_DIRECT); os.unlink(n); s.capacity_bytes=cap
        if cap>(1<<20): os.posix_fallocate(s.fd,0,cap+4096)
    def _io(s,f,off,addr,size):
        assert addr%4096==0,(addr%4096)
        size=(size+4095)//4096*4096
        done=0
        while done<size:
            n=min(16<<20,size-done); b=(ctypes.c_char*n).from_address(addr+done); k=f(s.fd,[b],off+done); assert k>0; done+=k
    def write(s,off,addr,size): s._io(os.pwritev,off,addr,size)
    def read(s,off,addr,size): s._io(os.preadv,off,addr,size)
    def close(s): os.close(s.fd)
